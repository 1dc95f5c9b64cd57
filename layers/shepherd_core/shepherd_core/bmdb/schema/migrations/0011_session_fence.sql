-- What was sent and not answered is given up only when the server cannot commit it any more.

-- Every statement that writes for a session locks its row and finds the fence that it was sent with. Whoever lost an
-- answer raises it.
ALTER TABLE sessions ADD COLUMN fence bigint NOT NULL DEFAULT 0;

-- A session cannot go while it has work. Work that was committed late went with it, and left no end in the history. The
-- old constraint has one name in PostgreSQL and another in CockroachDB.
ALTER TABLE work DROP CONSTRAINT IF EXISTS work_session_id_fkey;
ALTER TABLE work DROP CONSTRAINT IF EXISTS fk_session_id_ref_sessions;
ALTER TABLE work ADD CONSTRAINT work_session FOREIGN KEY (session_id) REFERENCES sessions;

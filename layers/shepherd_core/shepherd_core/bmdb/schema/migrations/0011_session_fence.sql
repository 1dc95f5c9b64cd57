-- A statement whose answer was lost is abandoned only when the server cannot commit it any more.

-- Every statement that writes for a session locks its row and compares the fence with the one that it was sent with. A
-- session that lost an answer raises the fence.
ALTER TABLE sessions ADD COLUMN fence bigint NOT NULL DEFAULT 0;

-- A session cannot be deleted while it has work: ON DELETE CASCADE deleted work that was committed late, and left its
-- history without an end. The old constraint has one name in PostgreSQL and another in CockroachDB.
ALTER TABLE work DROP CONSTRAINT IF EXISTS work_session_id_fkey;
ALTER TABLE work DROP CONSTRAINT IF EXISTS fk_session_id_ref_sessions;
ALTER TABLE work ADD CONSTRAINT work_session FOREIGN KEY (session_id) REFERENCES sessions;

-- Statements that give the functions their database roles.

-- name: granted_tables
-- The tables and views on which, or on columns of which, this user has granted something to the roles of the functions.
SELECT table_name, grantee
FROM information_schema.role_table_grants
WHERE table_schema = 'public' AND grantee = ANY(:users::text[])
UNION
SELECT table_name, grantee
FROM information_schema.role_column_grants
WHERE table_schema = 'public' AND grantee = ANY(:users::text[]);

-- Statements that give the functions their database roles.

-- name: revocations
-- The statements that take back whatever this user has granted to the roles of the functions.
SELECT format('REVOKE ALL ON %I FROM %I', table_name, grantee)
FROM (
    SELECT table_name, grantee FROM information_schema.role_table_grants WHERE table_schema = 'public'
    UNION
    SELECT table_name, grantee FROM information_schema.role_column_grants WHERE table_schema = 'public'
) AS granted
WHERE grantee = ANY(:users::text[]);

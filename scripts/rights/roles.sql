-- Roles of PostgreSQL, each with no more than it needs. Run it as a superuser, in the database that hexlane is to use;
-- before `hexlane migrate`, and once again after it, when there are tables to write to:
--   psql -c '\set owner_password `cat FILE`' -c '\set worker_password `cat FILE`' -f scripts/rights/roles.sql
-- (psql reads the files by itself: what stands in its arguments, everybody on the machine can see.)
-- It stops with an error where a password is empty, which would lock everybody out.
--
--   hexlane_owner    owns the tables: `hexlane migrate`
--   hexlane_worker   everything else: `hexlane worker`, `prune`, `check`

-- The passwords below belong into no log of the server.
SET log_statement = 'none';
SET log_min_duration_statement = -1;
SET log_min_error_statement = 'panic';

\set ON_ERROR_STOP on
SELECT :'owner_password' <> '' AND :'worker_password' <> '' AS are_given
\gset
\if :are_given
\else
DO $$BEGIN RAISE EXCEPTION 'a file with a password is empty, or cannot be read; nothing was changed'; END$$;
\endif

-- Only a superuser may install it.
CREATE EXTENSION IF NOT EXISTS postgis;

SELECT format('CREATE ROLE %I LOGIN', name)
FROM unnest(ARRAY['hexlane_owner', 'hexlane_worker']) AS name
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name)
\gexec
ALTER ROLE hexlane_owner PASSWORD :'owner_password';
ALTER ROLE hexlane_worker PASSWORD :'worker_password';
-- What a session sets for itself does not last through a pooler in transaction mode.
ALTER ROLE hexlane_worker SET statement_timeout = '30s';
ALTER ROLE hexlane_worker SET lock_timeout = '20s';

GRANT USAGE, CREATE ON SCHEMA public TO hexlane_owner;
GRANT USAGE ON SCHEMA public TO hexlane_worker;
GRANT USAGE ON LANGUAGE plpgsql TO hexlane_worker;
SELECT format('ALTER %s %I OWNER TO hexlane_owner', CASE relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, relname)
FROM pg_class
WHERE oid IN (to_regclass('feature_state'), to_regclass('processed_event'), to_regclass('hexlane_schema_version'),
    to_regclass('feature'))
\gexec
SELECT format('GRANT %s ON %I TO hexlane_worker',
    CASE relname WHEN 'hexlane_schema_version' THEN 'SELECT' ELSE 'SELECT, INSERT, UPDATE, DELETE' END, relname)
FROM pg_class
WHERE oid IN (to_regclass('feature_state'), to_regclass('processed_event'), to_regclass('hexlane_schema_version'))
\gexec

CREATE EXTENSION IF NOT EXISTS postgis;

-- One row for each feature ever seen, tombstones included. Column order keeps fixed-width columns
-- free of padding.
--
-- Chosen by measurement (`scripts/bench table --runs 1 --passes 10`, PostgreSQL 15 on 2 cores, 100 000 features, 5
-- million events without a rest, autovacuum_naptime 10s; events/s of the last pass against this schema, then size of
-- table and indexes in MiB at the end, 27 + 41 as it is):
--     ids compared by ICU instead of bytes     0.87    27 + 41
--     fillfactor 50, 85, 100 instead of 70     1.02, 0.95, 1.02    36 + 45, 37 + 49, 29 + 44
--     GiST index with fillfactor 70            1.03    29 + 45
--     SP-GiST instead of GiST                  1.04    33 + 47, and no nearest neighbours (<->)
--     autovacuum unthrottled                   1.00    29 + 44
--     autovacuum off                           0.76    125 + 169
--     8 partitions by hash of the id           1.07    31 + 46
--     unlogged                                 1.06    49 + 51
--     no GiST index                            2.29    30 + 3
-- Runs differ by 0.1, so nothing that keeps the GiST index is better for certain, and PostgreSQL's own settings stay;
-- the fillfactor keeps the table smaller where vacuum comes once a minute (33 instead of 42 MiB after 1.5 million
-- events). That it comes often matters most, and is a setting of the server: autovacuum_naptime.
CREATE TABLE feature_state (
    feature_id       text COLLATE "C" NOT NULL PRIMARY KEY,
    version          bigint NOT NULL CHECK (version >= 0),
    op               text NOT NULL CHECK (op IN ('create', 'update', 'delete')),
    observation_time timestamptz NOT NULL,
    geometry         geometry(Geometry, 4326),
    geometry_z       geometry(GeometryZ, 4326),
    properties       jsonb,
    cell             bigint,
    applied_at       timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT tombstone_has_no_geometry CHECK ((op = 'delete') = (geometry IS NULL))
) WITH (fillfactor = 70);

COMMENT ON TABLE feature_state IS 'newest state of every feature; op = delete is a tombstone, which keeps late events from resurrecting the feature';
COMMENT ON COLUMN feature_state.version IS 'together with observation_time the order of a feature''s events';
COMMENT ON COLUMN feature_state.geometry IS 'two-dimensional footprint, WGS 84 longitude and latitude';
COMMENT ON COLUMN feature_state.geometry_z IS 'the whole geometry where the event carried heights';
COMMENT ON COLUMN feature_state.cell IS 'H3 index: the event''s own, else that of the first position';
COMMENT ON COLUMN feature_state.applied_at IS 'when this state was written, by the database''s clock';

CREATE INDEX feature_state_geometry ON feature_state USING gist (geometry);

CREATE VIEW feature AS
    SELECT feature_id, version, observation_time, geometry, properties, cell, applied_at
    FROM feature_state
    WHERE op <> 'delete';

COMMENT ON VIEW feature IS 'the live features';

-- The ledger of event ids: a redelivery of one is a duplicate, whatever version it claims.
CREATE TABLE processed_event (
    feature_id   text COLLATE "C" NOT NULL,
    event_id     text COLLATE "C" NOT NULL,
    processed_at timestamptz NOT NULL,
    PRIMARY KEY (feature_id, event_id)
);

COMMENT ON TABLE processed_event IS 'event ids handled within the deduplication window';

-- What a timing's decodes spent, where the machine tells; rows of no attempt elsewhere. Like the other readings without an index.
-- One row a counter, round, document and place in the order of arms: microjoules, gross, and nanoseconds between the two readings.
CREATE TABLE energy_sample (
    attempt_id VARCHAR NOT NULL, doc_key VARCHAR NOT NULL, round INTEGER NOT NULL, position INTEGER NOT NULL, arm VARCHAR NOT NULL,
    twin BOOLEAN NOT NULL, domain VARCHAR NOT NULL, energy_uj BIGINT NOT NULL, wall_ns BIGINT NOT NULL
);

-- One row a counter of a timing: whether it is added to the others, what it counted while nothing was decoded, in how long, and how
-- long it stands still between two steps (NULL: it did not move).
CREATE TABLE energy_domain (
    attempt_id VARCHAR NOT NULL, domain VARCHAR NOT NULL, is_counted BOOLEAN NOT NULL, idle_uj BIGINT NOT NULL, idle_ns BIGINT NOT NULL,
    update_ns BIGINT
);

-- Names begin with packhorse_ so that the tables can live beside a user's own in one file.
-- Partial indexes test one column for NULL and never `state IN (…)`: SQLite builds that list anew for every row that it
-- writes, which made finishing a quarter slower. So `due_at`, `owner` and `finished_at` are set exactly while a job is
-- waiting for its time, held, or finished.

CREATE TABLE packhorse_meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE packhorse_job (
    id              TEXT NOT NULL,
    seq             INTEGER PRIMARY KEY,
    task            TEXT NOT NULL,
    queue           TEXT NOT NULL,
    args            TEXT,                      -- NULL: long, and kept in packhorse_large_args
    state           TEXT NOT NULL,
    priority        INTEGER NOT NULL,
    rank            INTEGER NOT NULL,
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL,
    due_at          INTEGER,
    queued_at       INTEGER,
    first_queued_at INTEGER,
    started_at      INTEGER,
    finished_at     INTEGER,
    owner           TEXT,
    last_owner      TEXT,
    fence           INTEGER NOT NULL DEFAULT 0,
    attempts        INTEGER NOT NULL DEFAULT 0,
    failures        INTEGER NOT NULL DEFAULT 0,
    halts           INTEGER NOT NULL DEFAULT 0,
    losses          INTEGER NOT NULL DEFAULT 0,
    snoozes         INTEGER NOT NULL DEFAULT 0,
    max_attempts    INTEGER NOT NULL DEFAULT 4,
    max_halts       INTEGER NOT NULL DEFAULT 3,
    timeout         INTEGER,
    idle_timeout    INTEGER,
    expires         INTEGER,
    total_timeout   INTEGER,
    expire_at       INTEGER,
    abort_at        INTEGER,
    abort_reason    TEXT,
    reason          TEXT,
    error           TEXT,
    cause           TEXT,
    result          TEXT,
    progress        INTEGER,
    progress_text   TEXT,
    checkin         TEXT,
    checkin_at      INTEGER,
    unique_key      TEXT,
    persistent      INTEGER NOT NULL DEFAULT 0,
    created_by      TEXT,
    schedule        TEXT,
    backoff         TEXT,
    meta            TEXT,
    packs           TEXT NOT NULL DEFAULT ''   -- the packs of events that this job is in: "17,21,"
) STRICT;

CREATE UNIQUE INDEX packhorse_job_id       ON packhorse_job (id);
CREATE INDEX packhorse_job_queue           ON packhorse_job (queue, seq);
CREATE INDEX packhorse_job_line            ON packhorse_job (rank, queue, seq) WHERE state = 'queued';
CREATE INDEX packhorse_job_due             ON packhorse_job (due_at)           WHERE due_at IS NOT NULL;
CREATE INDEX packhorse_job_retrying        ON packhorse_job (due_at)           WHERE state = 'retrying';
CREATE INDEX packhorse_job_held            ON packhorse_job (owner)            WHERE owner IS NOT NULL;
CREATE INDEX packhorse_job_finished        ON packhorse_job (state, finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX packhorse_job_cause           ON packhorse_job (cause)            WHERE cause IS NOT NULL;
CREATE INDEX packhorse_job_expiring        ON packhorse_job (expire_at)        WHERE expire_at IS NOT NULL;

-- Long arguments stay out of the hot row: every change of state would copy them.
CREATE TABLE packhorse_large_args (
    job  INTEGER PRIMARY KEY,
    args TEXT NOT NULL
) STRICT;

-- Many alike events of one call make one row, a pack: `jobs` has what differs, [[job_id, fence, at, data], …] with `at`
-- counted from the row's. It stands for the ids from `id - span` to `id`. If its jobs are of several queues, `queue` is
-- NULL, and `data` has them, [[queue, number], …] in the order of the jobs. Three rows for each job took a third of the
-- time of running it.
CREATE TABLE packhorse_event (
    id      INTEGER PRIMARY KEY,               -- never used again: prune leaves the newest
    at      INTEGER NOT NULL,
    kind    TEXT NOT NULL,
    subject TEXT NOT NULL,
    job_id  TEXT,
    queue   TEXT,
    state   TEXT,
    owner   TEXT,
    fence   INTEGER,
    data    TEXT,
    jobs    TEXT,
    span    INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX packhorse_event_job     ON packhorse_event (job_id)      WHERE job_id IS NOT NULL;
CREATE INDEX packhorse_event_subject ON packhorse_event (subject, id) WHERE job_id IS NULL;

-- The packs of jobs that are gone, and the oldest ones of jobs that live long.
CREATE TABLE packhorse_old_packs (
    id     INTEGER PRIMARY KEY,
    job_id TEXT NOT NULL,
    packs  TEXT NOT NULL,
    at     INTEGER NOT NULL
) STRICT;

CREATE INDEX packhorse_old_packs_job ON packhorse_old_packs (job_id);

CREATE TABLE packhorse_log_line (
    id      INTEGER PRIMARY KEY,
    job_id  TEXT NOT NULL,
    at      INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    kind    TEXT NOT NULL,
    message TEXT NOT NULL
) STRICT;

CREATE INDEX packhorse_log_line_job ON packhorse_log_line (job_id, id);

-- A lock is only a pointer: whether its job still holds the key is read from the job, so no crash can leave it shut.
CREATE TABLE packhorse_unique_lock (
    key      TEXT PRIMARY KEY,
    job_id   TEXT NOT NULL,
    period   INTEGER,
    until    TEXT NOT NULL,
    taken_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Calls that were not stored because a job of the same key took their arguments, and that job. By rowid they are in order.
CREATE TABLE packhorse_replaced (
    twin   TEXT PRIMARY KEY,
    job_id TEXT NOT NULL,
    at     INTEGER NOT NULL
) STRICT;

CREATE TABLE packhorse_tally (
    queue  TEXT NOT NULL,
    task   TEXT NOT NULL,
    state  TEXT NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (queue, task, state)
) STRICT, WITHOUT ROWID;

CREATE TABLE packhorse_measure (
    level   TEXT NOT NULL,
    at      INTEGER NOT NULL,
    queue   TEXT NOT NULL,
    task    TEXT NOT NULL,
    counted TEXT NOT NULL,
    amount  INTEGER NOT NULL,
    PRIMARY KEY (level, at, queue, task, counted)
) STRICT, WITHOUT ROWID;

CREATE TABLE packhorse_failure (
    cause       TEXT PRIMARY KEY,
    task        TEXT NOT NULL,
    pattern     TEXT NOT NULL,
    place       TEXT,
    number      INTEGER NOT NULL,
    first_at    INTEGER NOT NULL,
    last_at     INTEGER NOT NULL,
    last_job_id TEXT NOT NULL,
    silenced_until INTEGER,
    silenced_by TEXT
) STRICT, WITHOUT ROWID;

CREATE TABLE packhorse_queue (
    name       TEXT PRIMARY KEY,
    paused_at  INTEGER,
    paused_by  TEXT,
    paused_why TEXT
) STRICT, WITHOUT ROWID;

CREATE TABLE packhorse_task (
    name         TEXT PRIMARY KEY,
    queue        TEXT NOT NULL,
    options      TEXT NOT NULL DEFAULT '{}',
    announced_at INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE packhorse_worker (
    id          TEXT PRIMARY KEY,
    subject     TEXT NOT NULL,
    foreman     TEXT,
    host        TEXT NOT NULL,
    pid         INTEGER NOT NULL,
    queues      TEXT NOT NULL,
    concurrency INTEGER NOT NULL,
    info        TEXT NOT NULL,
    report      TEXT NOT NULL,
    joined_at   INTEGER NOT NULL,
    beat_at     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE packhorse_client (
    id        TEXT PRIMARY KEY,
    name      TEXT NOT NULL,
    info      TEXT NOT NULL,
    joined_at INTEGER NOT NULL,
    beat_at   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE packhorse_subscriber (
    job_id    TEXT NOT NULL,
    client_id TEXT NOT NULL,
    PRIMARY KEY (job_id, client_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX packhorse_subscriber_client ON packhorse_subscriber (client_id);

CREATE TABLE packhorse_schedule (
    name        TEXT PRIMARY KEY,
    task        TEXT NOT NULL,
    cron        TEXT NOT NULL,
    tz          TEXT NOT NULL,
    args        TEXT NOT NULL,
    queue       TEXT,
    options     TEXT NOT NULL,
    missed      TEXT NOT NULL,
    overlap     TEXT NOT NULL,
    next_at     INTEGER NOT NULL,
    last_at     INTEGER,
    last_job_id TEXT,
    paused_at   INTEGER,
    paused_by   TEXT,
    updated_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX packhorse_schedule_next ON packhorse_schedule (next_at) WHERE paused_at IS NULL;

CREATE TABLE packhorse_tick (
    id       INTEGER PRIMARY KEY,
    schedule TEXT NOT NULL,
    slot     INTEGER NOT NULL,
    outcome  TEXT NOT NULL,
    at       INTEGER NOT NULL,
    job_id   TEXT
) STRICT;

CREATE INDEX packhorse_tick_schedule ON packhorse_tick (schedule, id);

-- Text is compared by its bytes, trailing spaces and all: names are the same on every server, or they are different.
-- Each server reads the one of the two comments that is meant for it, and gives its own collation of that kind.
-- MySQL has no partial indexes: `line`, `retry_at` and `ended` are there so that the jobs in line, those that retry and
-- the finished ones are each found by an index in which all others are nothing but NULL.

CREATE TABLE IF NOT EXISTS {schema}.packhorse_meta (
    `key` varchar(64) PRIMARY KEY,
    value longtext NOT NULL
) {table};

-- Every transaction that writes shares a lock on the first of these, so that a move can wait for all of them. The second
-- one is for who folds what was counted; the third tells these tables from those of any other server.
INSERT INTO {schema}.packhorse_meta (`key`, value) VALUES ('move', ''), ('fold', ''), ('storage', uuid())
ON DUPLICATE KEY UPDATE value = value;

CREATE TABLE IF NOT EXISTS {schema}.packhorse_job (
    seq             bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    created_at      bigint NOT NULL,
    updated_at      bigint NOT NULL,
    due_at          bigint,
    queued_at       bigint,
    first_queued_at bigint,
    started_at      bigint,
    finished_at     bigint,
    fence           bigint NOT NULL DEFAULT 0,
    timeout         bigint,
    idle_timeout    bigint,
    expires         bigint,
    total_timeout   bigint,
    expire_at       bigint,
    abort_at        bigint,
    checkin_at      bigint,
    attempts        int NOT NULL DEFAULT 0,
    failures        int NOT NULL DEFAULT 0,
    halts           int NOT NULL DEFAULT 0,
    losses          int NOT NULL DEFAULT 0,
    snoozes         int NOT NULL DEFAULT 0,
    max_attempts    int NOT NULL DEFAULT 4,
    max_halts       int NOT NULL DEFAULT 3,
    progress        int,
    priority        smallint NOT NULL,
    `rank`          smallint NOT NULL,
    persistent      tinyint NOT NULL DEFAULT 0,
    id              varchar(255) NOT NULL,
    task            varchar(255) NOT NULL,
    queue           varchar(255) NOT NULL,
    state           varchar(16) NOT NULL,
    owner           varchar(255),
    last_owner      varchar(255),
    abort_reason    varchar(32),
    reason          varchar(32),
    cause           varchar(512),
    unique_key      varchar(512),
    schedule        varchar(255),
    args            longtext NOT NULL,
    error           longtext,
    result          longtext,
    progress_text   longtext,
    checkin         longtext,
    created_by      longtext,
    backoff         longtext,
    meta            longtext,
    line            varchar(255) AS (CASE WHEN state = 'queued' THEN queue END) STORED,
    ended           varchar(16) AS (CASE WHEN finished_at IS NOT NULL THEN state END) STORED,
    retry_at        bigint AS (CASE WHEN state = 'retrying' THEN due_at END) STORED,
    UNIQUE INDEX packhorse_job_id (id),
    INDEX packhorse_job_queue (queue, seq),
    INDEX packhorse_job_line (line, `rank`, seq),
    INDEX packhorse_job_due (due_at, seq),
    INDEX packhorse_job_retrying (retry_at, seq),
    INDEX packhorse_job_held (owner, seq),
    INDEX packhorse_job_finished (ended, finished_at, seq),
    INDEX packhorse_job_cause (cause, seq),
    INDEX packhorse_job_expiring (expire_at, seq)
) {table};

CREATE TABLE IF NOT EXISTS {schema}.packhorse_event (
    id      bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    at      bigint NOT NULL,
    fence   bigint,
    kind    varchar(32) NOT NULL,
    subject varchar(16) NOT NULL,
    job_id  varchar(255),
    queue   varchar(255),
    state   varchar(16),
    owner   varchar(255),
    data    longtext,
    INDEX packhorse_event_job (job_id, subject, id)
) {table};

CREATE TABLE IF NOT EXISTS {schema}.packhorse_log_line (
    id      bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    at      bigint NOT NULL,
    attempt int NOT NULL,
    job_id  varchar(255) NOT NULL,
    kind    varchar(16) NOT NULL,
    message longtext NOT NULL,
    INDEX packhorse_log_line_job (job_id, id)
) {table};

-- A lock is only a pointer: whether its job still holds the key is read from the job, so no crash can leave it shut. A
-- row without a job is there to be locked by whoever is about to take the key.
CREATE TABLE IF NOT EXISTS {schema}.packhorse_unique_lock (
    `key`    varchar(512) PRIMARY KEY,
    job_id   varchar(255) NOT NULL DEFAULT '',
    period   bigint,
    until    varchar(16) NOT NULL DEFAULT 'finish',
    taken_at bigint NOT NULL DEFAULT 0
) {table};

-- Calls that were not stored because a job of the same key took their arguments, and that job.
CREATE TABLE IF NOT EXISTS {schema}.packhorse_replaced (
    id     bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    at     bigint NOT NULL,
    twin   varchar(255) NOT NULL UNIQUE,
    job_id varchar(255) NOT NULL
) {table};

-- What is counted. Each call only adds rows to `packhorse_delta`, so that no two calls wait for each other; now and
-- then somebody folds them into `packhorse_measure`. Level `tally` counts the jobs by state, as they are now.
CREATE TABLE IF NOT EXISTS {schema}.packhorse_delta (
    id      bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    level   varchar(16) NOT NULL,
    at      bigint NOT NULL,
    queue   varchar(255) NOT NULL,
    task    varchar(255) NOT NULL,
    counted varchar(32) NOT NULL,
    amount  bigint NOT NULL
) {table};

CREATE TABLE IF NOT EXISTS {schema}.packhorse_measure (
    level   varchar(16) NOT NULL,
    at      bigint NOT NULL,
    queue   varchar(255) NOT NULL,
    task    varchar(255) NOT NULL,
    counted varchar(32) NOT NULL,
    amount  bigint NOT NULL,
    PRIMARY KEY (level, at, queue, task, counted)
) {table};

CREATE OR REPLACE SQL SECURITY INVOKER VIEW {schema}.packhorse_counted AS
SELECT level, at, queue, task, counted, amount FROM {schema}.packhorse_measure
UNION ALL
SELECT level, at, queue, task, counted, amount FROM {schema}.packhorse_delta;

CREATE TABLE IF NOT EXISTS {schema}.packhorse_failure (
    cause       varchar(512) PRIMARY KEY,
    task        varchar(255) NOT NULL,
    pattern     longtext NOT NULL,
    place       longtext,
    number      bigint NOT NULL,
    first_at    bigint NOT NULL,
    last_at     bigint NOT NULL,
    last_job_id varchar(255) NOT NULL,
    silenced_until bigint,
    silenced_by    longtext
) {table};

CREATE TABLE IF NOT EXISTS {schema}.packhorse_queue (
    name       varchar(255) PRIMARY KEY,
    paused_at  bigint,
    paused_by  longtext,
    paused_why longtext
) {table};

CREATE TABLE IF NOT EXISTS {schema}.packhorse_task (
    name         varchar(255) PRIMARY KEY,
    queue        varchar(255) NOT NULL,
    options      longtext NOT NULL,
    announced_at bigint
) {table};

CREATE TABLE IF NOT EXISTS {schema}.packhorse_worker (
    id          varchar(255) PRIMARY KEY,
    subject     varchar(16) NOT NULL,
    foreman     varchar(255),
    host        varchar(255) NOT NULL,
    pid         bigint NOT NULL,
    queues      longtext NOT NULL,
    concurrency int NOT NULL,
    info        longtext NOT NULL,
    report      longtext NOT NULL,
    joined_at   bigint NOT NULL,
    beat_at     bigint NOT NULL
) {table};

CREATE TABLE IF NOT EXISTS {schema}.packhorse_client (
    id        varchar(255) PRIMARY KEY,
    name      longtext NOT NULL,
    info      longtext NOT NULL,
    joined_at bigint NOT NULL,
    beat_at   bigint NOT NULL
) {table};

CREATE TABLE IF NOT EXISTS {schema}.packhorse_subscriber (
    job_id    varchar(255) NOT NULL,
    client_id varchar(255) NOT NULL,
    PRIMARY KEY (job_id, client_id),
    INDEX packhorse_subscriber_client (client_id)
) {table};

CREATE TABLE IF NOT EXISTS {schema}.packhorse_schedule (
    name        varchar(255) PRIMARY KEY,
    task        varchar(255) NOT NULL,
    cron        longtext NOT NULL,
    tz          varchar(255) NOT NULL,
    args        longtext NOT NULL,
    queue       varchar(255),
    options     longtext NOT NULL,
    missed      varchar(16) NOT NULL,
    overlap     varchar(16) NOT NULL,
    next_at     bigint NOT NULL,
    last_at     bigint,
    last_job_id varchar(255),
    paused_at   bigint,
    paused_by   longtext,
    updated_at  bigint NOT NULL,
    INDEX packhorse_schedule_next (paused_at, next_at)
) {table};

CREATE TABLE IF NOT EXISTS {schema}.packhorse_tick (
    id       bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    schedule varchar(255) NOT NULL,
    slot     bigint NOT NULL,
    outcome  varchar(16) NOT NULL,
    at       bigint NOT NULL,
    job_id   varchar(255),
    INDEX packhorse_tick_schedule (schedule, id)
) {table};

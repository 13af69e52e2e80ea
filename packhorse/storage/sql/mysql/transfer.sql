-- name: which_storage
SELECT value FROM {schema}.packhorse_meta WHERE `key` = 'storage'

-- name: get_move
SELECT value FROM {schema}.packhorse_meta WHERE `key` = 'move'

-- name: share_writing
-- Every transaction that writes begins with this.
SELECT value, {now} FROM {schema}.packhorse_meta WHERE `key` = 'move' LOCK IN SHARE MODE

-- name: stop_writing
SELECT value FROM {schema}.packhorse_meta WHERE `key` = 'move' FOR UPDATE

-- name: put_move
UPDATE {schema}.packhorse_meta SET value = $1 WHERE `key` = 'move'

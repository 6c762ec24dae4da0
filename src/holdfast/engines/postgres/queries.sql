-- Every statement of the Postgres engine, one each, by name. Many rows are passed as arrays, one for each column. The
-- comment says which act a statement serves. `lateral (… offset 0)` is an index lookup for each row: the planner can't
-- turn it into a scan of a large table, whatever it estimates. Only `store.Texts` fills in `{schema}`. Behind a pooler,
-- and on a caller's own connection, the search_path isn't ours, so tables and functions are named with their schema,
-- and so are operators with operands of types outside the catalog. `unnest` of several arrays must be written without
-- its schema: the server recognises it only by that name.

-- name: now
select {schema}.now_ms();

-- name: health
-- doctor: what the server's settings can lose, how many connections are used and allowed, for how many seconds the
-- oldest transaction in this database has been open (null: none), and whether we may see those of others
select pg_catalog.current_setting('fsync'), pg_catalog.current_setting('synchronous_commit'),
  (select pg_catalog.sum(numbackends)::bigint from pg_catalog.pg_stat_database),
  pg_catalog.current_setting('max_connections')::bigint
    - pg_catalog.current_setting('superuser_reserved_connections')::bigint,
  (select pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - pg_catalog.min(xact_start))
   from pg_catalog.pg_stat_activity
   where datname = pg_catalog.current_database() and pid <> pg_catalog.pg_backend_pid()),
  pg_catalog.pg_has_role('pg_read_all_stats', 'usage')
    or not exists (
      select 1 from pg_catalog.pg_stat_activity
      where datname = pg_catalog.current_database() and usename <> current_user
    );

-- name: add_alike
-- insert: a bulk of new jobs that differ only in id, arguments and digest, and have no key. If an id exists already,
-- none is written, and `add_jobs` finds out which.
with new as materialized (
  select own.id, own.args, own.digest,
    (select ({schema}.now_ms() / 86400000) << 40) + pg_catalog.nextval('{schema}.job_n') as n
  from unnest($1::text[], $2::text[], $3::text[]) as own (id, args, digest)
), named as (
  insert into {schema}.name (id, n) select id, n from new
), bodies as (
  insert into {schema}.body (n, args) select n, args from new where pg_catalog.length(args) > 1000
), counted as (
  insert into {schema}.tally (queue, state, jobs) values ($5::text, $6::text, pg_catalog.cardinality($1::text[]))
), families as (
  insert into {schema}.family (parent, name, total, arrived)
  select $12::text, coalesce($13::text, ''), pg_catalog.cardinality($1::text[]), 0 where $12::text is not null
  on conflict (parent, name) do update set total = family.total + excluded.total
), rechecked as (
  insert into {schema}.recheck (queue, key, at)
  select $5::text, $14::text, $9::bigint where $14::text is not null and $6::text = 'available'
)
insert into {schema}.job (n, id, type, queue, args, digest, state, priority, created_at, run_at, expires_at, options,
  parent, family, version, epoch, attempt, recoveries, arrived, first_state, first_epoch, summed, limit_key)
select n, id, $4::text, $5::text, case when pg_catalog.length(args) <= 1000 then args end, digest, $6::text, $7::bigint,
  $8::bigint, $9::bigint, $10::bigint, $11::text, $12::text, $13::text, 1, 0, 1, 0, false, $6::text, 0, 1, $14::text
from new;

-- name: add_jobs
-- insert and commit: new jobs. A job whose id exists, or whose key or unique name another job has, isn't written: the
-- answer lists these, with the holder of the key. Each parameter occurs once, because a caller's driver may renumber them.
with new as materialized (
  select own.*, (select ({schema}.now_ms() / 86400000) << 40) + pg_catalog.nextval('{schema}.job_n') as n,
    case when own.unique_name is null then own.type else '~unique' end as held_type,
    coalesce(own.unique_name, own.key) as held_key
  from unnest(
    $1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::bigint[], $8::text[], $9::bigint[],
    $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::text[], $15::bigint[], $16::bigint[],
    $17::bigint[], $18::boolean[], $19::text[], $20::text[], $21::text[], $22::text[], $23::text[], $24::text[],
    $25::text[], $26::bigint[], $27::bigint[], $28::text[], $29::text[], $30::text[], $31::text[], $32::bigint[]
  ) as own (
    id, type, queue, priority, parent, family, expires_at, state, version, run_at, epoch, attempt, recoveries,
    worker, claimed_at, finished_at, prune_at, arrived, waits, inbox, error, result, args, digest, key, key_until,
    created_at, options, limit_key, unique_name, stamp, unique_until
  )
), keyed as (
  insert into {schema}.key as held (type, key, job, digest, until, created_at)
  select held_type, held_key, id, coalesce(stamp, digest), case when stamp is null then key_until else unique_until end,
    created_at from new
  where held_key is not null and not exists (select 1 from {schema}.name where name.id = new.id offset 0)
  order by held_type, held_key
  on conflict (type, key) do update set (job, digest, until, created_at) = (
    select case when free then excluded.job else held.job end, case when free then excluded.digest else held.digest end,
      case when free then excluded.until else held.until end,
      case when free then excluded.created_at else held.created_at end
    from (select {schema}.is_free(held, excluded.digest, excluded.created_at) as free offset 0) as asked)
  returning type, key, job, digest
), named as (
  insert into {schema}.name (id, n)
  select new.id, new.n from new left join keyed on keyed.type = new.held_type and keyed.key = new.held_key
  where new.held_key is null or keyed.job = new.id
  on conflict (id) do nothing
  returning id
), added as not materialized (
  -- usually all of them, and then nothing is compared
  select * from new
  where (select pg_catalog.count(*) from named) = (select pg_catalog.count(*) from new)
    or id in (select id from named)
), bodies as (
  insert into {schema}.body (n, args) select n, args from added where pg_catalog.length(args) > 1000
), jobs as (
  insert into {schema}.job (n, id, type, queue, args, digest, priority, key, key_until, parent, family, created_at,
    expires_at, options, state, version, run_at, epoch, attempt, recoveries, worker, claimed_at, waits, result,
    error, finished_at, prune_at, inbox, arrived, first_state, first_epoch, summed, limit_key)
  select n, id, type, queue, case when pg_catalog.length(args) <= 1000 then args end, digest, priority, key, key_until,
    parent, family, created_at, expires_at, options, state, version, run_at, epoch, attempt, recoveries, worker,
    claimed_at, waits, result, error, finished_at, prune_at, inbox, arrived, state, epoch, version, limit_key
  from added where state not in ('completed', 'discarded', 'cancelled')
), ended as (
  insert into {schema}.done (n, id, type, queue, args, digest, priority, key, key_until, parent, family, created_at,
    expires_at, options, state, version, run_at, epoch, attempt, recoveries, worker, claimed_at, waits, result,
    error, finished_at, prune_at, inbox, arrived, first_state, first_epoch, summed)
  select n, id, type, queue, case when pg_catalog.length(args) <= 1000 then args end, digest, priority, key, key_until,
    parent, family, created_at, expires_at, options, state, version, run_at, epoch, attempt, recoveries, worker,
    claimed_at, waits, result, error, finished_at, prune_at, inbox, arrived, state, epoch, version
  from added where state in ('completed', 'discarded', 'cancelled')
), families as (
  insert into {schema}.family (parent, name, total, arrived)
  select parent, coalesce(family, ''), pg_catalog.count(*), 0 from added where parent is not null
  group by 1, 2 order by 1, 2
  on conflict (parent, name) do update set total = family.total + excluded.total
), counted as (
  insert into {schema}.tally (queue, state, jobs)
  select queue, state, pg_catalog.count(*) from added group by queue, state
), rechecked as (
  insert into {schema}.recheck (queue, key, at)
  select distinct queue, limit_key, case when state = 'available' then run_at else created_at end from added
  where limit_key is not null and state in ('available', 'pending')
)
select new.id, keyed.job, keyed.digest
from new left join keyed on keyed.type = new.held_type and keyed.key = new.held_key
where (select pg_catalog.count(*) from named) < (select pg_catalog.count(*) from new)
  and new.id not in (select id from named);

-- name: there
-- insert in a caller's transaction: has it been committed?
select id from {schema}.name where id = any($1::text[]);

-- name: hold
-- insert with a parent: locks its lease until we commit
select n from {schema}.job
where n = (select n from {schema}.name where id = $1) and epoch = $2 and state = 'active'
for no key update;

-- name: claim
-- the claimed jobs; a row with only a queue means that jobs were promoted there
select * from {schema}.claim($1, $2, $3, $4, $5::text[], $6, $7, $8);

-- name: heads
-- commit: the stored heads of jobs whose changes were refused
select name.id, head.state, head.version, head.epoch, head.inbox, head.arrived, head.worker, name.n
from {schema}.name cross join lateral (
  select state, version, epoch, inbox, arrived, worker from {schema}.job where job.n = name.n
  union all
  select state, version, epoch, inbox, arrived, worker from {schema}.done where done.n = name.n
) as head
where name.id = any($1::text[]);

-- name: lock_heads
-- commit: locks the jobs of changes with cargo until we commit; always in the same order
select id, state, version, epoch, inbox, arrived, worker, n from {schema}.job
where n = any(array(select n from {schema}.name where id = any($1::text[]))) order by n
for update;

-- name: change_jobs
-- commit, turn: `change_jobs`, `complete_jobs` and `claim` are the only statements that change a state. Compares what
-- each change expects with the job's row under its lock, so that one of several concurrent changes wins. A turn claims
-- in the same act; a commit passes no queue. The first row reports all changed jobs: ids, versions and former owners;
-- the other rows are the claimed jobs. If all changes have the same value in a column, an array of one is enough
-- (`once`). The first row also makes sure that rechecks exist before the claim looks for them, and
-- ends the permits of the jobs in $33 before that.
with given as materialized (
  select {schema}.once($2::bigint[]) as expects_epoch, {schema}.once($3::bigint[]) as expects_version,
    {schema}.once($4::text[]) as state, {schema}.once($5::bigint[]) as run_at, {schema}.once($6::bigint[]) as epoch,
    {schema}.once($7::bigint[]) as attempt, {schema}.once($8::bigint[]) as recoveries,
    {schema}.once($9::text[]) as worker, {schema}.once($10::bigint[]) as claimed_at,
    {schema}.once($11::bigint[]) as finished_at, {schema}.once($12::bigint[]) as prune_at,
    {schema}.once($13::boolean[]) as arrives, {schema}.once($14::text[]) as waits,
    {schema}.once($15::boolean[]) as sets_inbox, {schema}.once($16::text[]) as inbox,
    {schema}.once($17::text[]) as error, {schema}.once($18::text[]) as result, {schema}.once($19::bigint[]) as at,
    {schema}.once($20::text[]) as event, {schema}.once($21::text[]) as before, {schema}.once($22::text[]) as actor,
    {schema}.once($23::text[]) as note, {schema}.once($24::text[]) as limit_key
), change as materialized (
  select own.id, coalesce(own.expects_epoch, given.expects_epoch) as expects_epoch,
    coalesce(own.expects_version, given.expects_version) as expects_version,
    coalesce(own.state, given.state) as state, coalesce(own.run_at, given.run_at) as run_at,
    coalesce(own.epoch, given.epoch) as epoch, coalesce(own.attempt, given.attempt) as attempt,
    coalesce(own.recoveries, given.recoveries) as recoveries, coalesce(own.worker, given.worker) as worker,
    coalesce(own.claimed_at, given.claimed_at) as claimed_at,
    coalesce(own.finished_at, given.finished_at) as finished_at, coalesce(own.prune_at, given.prune_at) as prune_at,
    coalesce(own.arrives, given.arrives) as arrives, coalesce(own.waits, given.waits) as waits,
    coalesce(own.sets_inbox, given.sets_inbox) as sets_inbox, coalesce(own.inbox, given.inbox) as inbox,
    coalesce(own.error, given.error) as error, coalesce(own.result, given.result) as result,
    coalesce(own.at, given.at) as at, coalesce(own.event, given.event) as event,
    coalesce(own.before, given.before) as before, coalesce(own.actor, given.actor) as actor,
    coalesce(own.note, given.note) as note, coalesce(own.limit_key, given.limit_key) as limit_key, name.n
  from given cross join unnest(
    $1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
    $9::text[], $10::bigint[], $11::bigint[], $12::bigint[], $13::boolean[], $14::text[], $15::boolean[], $16::text[],
    $17::text[], $18::text[], $19::bigint[], $20::text[], $21::text[], $22::text[], $23::text[], $24::text[]
  ) as own (
    id, expects_epoch, expects_version, state, run_at, epoch, attempt, recoveries, worker, claimed_at, finished_at,
    prune_at, arrives, waits, sets_inbox, inbox, error, result, at, event, before, actor, note, limit_key
  )
  cross join lateral (select n from {schema}.name where name.id = own.id offset 0) as name
), going as materialized (
  -- the jobs to change, with their leases before the change: an update returns only the new values
  select change.*, job.worker as owner, job.claimed_at as owned_at, job.epoch as owned_epoch, job.untold
  from change cross join lateral (
    select worker, claimed_at, epoch, untold from {schema}.job where job.n = change.n offset 0
  ) as job
  where finished_at is null
), moved as (
  update {schema}.job set state = going.state, version = job.version + 1, run_at = going.run_at,
    epoch = going.epoch, attempt = going.attempt, recoveries = going.recoveries, worker = going.worker,
    claimed_at = going.claimed_at, prune_at = going.prune_at, arrived = job.arrived or going.arrives,
    waits = going.waits, inbox = case when going.sets_inbox then going.inbox else job.inbox end,
    error = going.error, result = going.result, untold = null, summed = job.summed + 1, limit_key = going.limit_key
  from going
  where job.n = going.n
    and job.n = any(array(select n from going))  -- by the primary key, however small the table looks
    and (expects_epoch is null or (job.epoch = expects_epoch and job.state = 'active'))
    and (expects_version is null or job.version = expects_version)
  returning job.n, job.id, job.version, job.queue, going.before, going.state, going.owner, going.owned_at,
    going.owned_epoch, going.untold, going.at, going.event, going.actor, going.epoch, going.note, false as is_plain, going.limit_key, going.run_at
), gone as (
  delete from {schema}.job using change
  where job.n = change.n and change.finished_at is not null
    and job.n = any(array(select n from change where finished_at is not null))
    and (expects_epoch is null or (job.epoch = expects_epoch and job.state = 'active'))
    and (expects_version is null or job.version = expects_version)
  returning job.*, change.before, change.state as ended_as, change.run_at as ended_run_at,
    change.epoch as ended_epoch, change.attempt as ended_attempt, change.recoveries as ended_recoveries,
    change.worker as ended_worker, change.claimed_at as ended_claimed_at, change.waits as ended_waits,
    change.result as ended_result, change.error as ended_error, change.finished_at as ended_at,
    change.prune_at as ended_prune_at,
    case when change.sets_inbox then change.inbox else job.inbox end as ended_inbox, change.arrives,
    change.at, change.event, change.actor, change.note,
    job.untold is not null and change.event = 'complete' and change.actor = job.worker
      and change.at = change.finished_at and change.epoch = job.epoch and change.note is null as is_plain
), ended as (
  insert into {schema}.done (n, id, type, queue, args, digest, priority, key, key_until, parent, family, created_at,
    expires_at, options, state, version, run_at, epoch, attempt, recoveries, worker, claimed_at, waits, result,
    error, finished_at, prune_at, inbox, arrived, first_state, first_epoch, told_claim, told_at, told_by, summed)
  select n, id, type, queue, args, digest, priority, key, key_until, parent, family, created_at, expires_at, options,
    ended_as, version + 1, ended_run_at, ended_epoch, ended_attempt, ended_recoveries, ended_worker, ended_claimed_at,
    ended_waits, ended_result, ended_error, ended_at, ended_prune_at, ended_inbox, arrived or arrives, first_state,
    first_epoch, case when is_plain then untold end, case when is_plain then claimed_at end,
    case when is_plain then worker end, summed + 1
  from gone
), made as materialized (
  select n, id, version, queue, before, state, owner, owned_at, owned_epoch, untold, at, event, actor, epoch, note,
    is_plain
  from moved
  union all
  select n, id, version + 1, queue, before, ended_as, worker, claimed_at, epoch, untold, at, event, actor, ended_epoch,
    note, is_plain
  from gone
), rechecked as (
  insert into {schema}.recheck (queue, key, at)
  select distinct queue, limit_key, case when state = 'available' then run_at else at end from moved
  where limit_key is not null and state in ('available', 'pending')
  returning key
), told as (
  -- the claim that has no entry yet, then the change itself
  insert into {schema}.entry (n, version, at, event, before, after, actor, epoch, note)
  select n, untold, owned_at, 'claim', 'available', 'active', owner, owned_epoch, null
  from made where untold is not null and not is_plain
  union all
  select n, version, at, event, before, state, actor, epoch, note from made where not is_plain
  on conflict (n, version) do nothing  -- a signal that arrived in between has already written the claim's entry
), counted as (
  insert into {schema}.tally (queue, state, jobs)
  select moves.queue, one.state, pg_catalog.sum(one.jobs)
  from (select queue, before, state, pg_catalog.count(*) as jobs from made group by queue, before, state) as moves
  cross join lateral (values (moves.before, -moves.jobs), (moves.state, moves.jobs)) as one (state, jobs)
  group by moves.queue, one.state having pg_catalog.sum(one.jobs) operator(pg_catalog.<>) 0
)
select null::bigint, null, null, null, null, null, null::bigint, null, null::bigint, null, null, null::bigint,
  null::bigint, null, null, null::bigint, null::bigint, null::bigint, null::bigint, null::bigint, null, null::bigint,
  null, null, null, null::bigint, null::bigint, null, null::boolean, pg_catalog.array_agg(id),
  pg_catalog.array_agg(version::text), pg_catalog.array_agg(owner), (select pg_catalog.count(*) from rechecked),
  case when pg_catalog.cardinality($33::text[]) > 0
    then {schema}.end_permits(pg_catalog.array_agg(n) filter (where id = any($33::text[]))) end
from made
union all
select claim.*, null, null, null, null, null
from {schema}.claim($25, $26, $27, $28, $29::text[], $30, $31, $32) as claim;

-- name: complete_jobs
-- commit, turn: what `change_jobs` does, for completions by their owner that differ only in their results: most turns
-- have nothing else. A completion changes nothing else in a job. Jobs are given by their numbers, which saves the
-- lookup in `name`, as one text, because the driver would ask for the type of an array of them; and with their ids,
-- because a server that went back in time assigns numbers again. The first row has the version that all of them have
-- now; or, if some were refused or the versions differ, the changed jobs and their versions.
with ending as materialized (
  select own.n, own.id, own.result from unnest($1::text::bigint[], $2::text[], $3::text[]) as own (n, id, result)
), gone as (
  -- The first columns are read several times, each time with all columns before them.
  delete from {schema}.job using ending
  where job.n = ending.n and job.n = any(array(select n from ending))
    -- `ending.n is null` is never true. An `or` can't imply a partial index's condition, so the primary key is used.
    and (ending.n is null or (job.id = ending.id and job.epoch = $4::bigint and job.state = 'active'))
  returning job.queue, job.version + 1 as version, job.untold is not null and job.worker = $7::text as is_plain, job.n,
    job.untold, job.claimed_at, job.worker, job.epoch, job.id, job.type, job.args, job.digest, job.priority, job.key,
    job.key_until, job.parent, job.family, job.created_at, job.expires_at, job.options, job.run_at, job.attempt,
    job.recoveries, ending.result, job.inbox, job.arrived, job.first_state, job.first_epoch, job.summed + 1 as summed
), ended as (
  insert into {schema}.done (n, id, type, queue, args, digest, priority, key, key_until, parent, family, created_at,
    expires_at, options, state, version, run_at, epoch, attempt, recoveries, worker, claimed_at, waits, result,
    error, finished_at, prune_at, inbox, arrived, first_state, first_epoch, told_claim, told_at, told_by, summed)
  select n, id, type, queue, args, digest, priority, key, key_until, parent, family, created_at, expires_at, options,
    'completed', version, run_at, epoch, attempt, recoveries, null, null, null, result, null, $5::bigint, $6::bigint,
    inbox, arrived, first_state, first_epoch, case when is_plain then untold end,
    case when is_plain then claimed_at end, case when is_plain then worker end, summed
  from gone
), told as (
  insert into {schema}.entry (n, version, at, event, before, after, actor, epoch, note)
  select gone.n, entry.version, entry.at, entry.event, entry.before, entry.after, entry.actor, gone.epoch, null
  from gone cross join lateral (
    values (untold, claimed_at, 'claim', 'available', 'active', worker),
      (gone.version, $5::bigint, 'complete', 'active', 'completed', $7::text)
  ) as entry (version, at, event, before, after, actor)
  where not is_plain and entry.version is not null
  on conflict (n, version) do nothing
), moves as materialized (
  select queue, pg_catalog.count(*) as jobs, pg_catalog.min(version) as low, pg_catalog.max(version) as high
  from gone group by queue
), counted as (
  insert into {schema}.tally (queue, state, jobs)
  select moves.queue, one.state, one.jobs
  from moves cross join lateral (values ('active', -moves.jobs), ('completed', moves.jobs)) as one (state, jobs)
), alike as (
  select pg_catalog.min(low) as version from moves
  having pg_catalog.sum(jobs)::bigint = (select pg_catalog.count(*) from ending) and pg_catalog.min(low) = pg_catalog.max(high)
)
select null::bigint, null, null, null, null, null, null::bigint, null, null::bigint, null, null, null::bigint,
  null::bigint, null, null, null::bigint, null::bigint, null::bigint, null::bigint, null::bigint, null, null::bigint,
  null, null, null, null::bigint, null::bigint, null, null::boolean, (select version from alike),
  case when not exists (select 1 from alike) then array(select id from gone) end,
  case when not exists (select 1 from alike) then array(select version::text from gone) end,
  case when pg_catalog.cardinality($16::text[]) > 0
    then {schema}.end_permits(array(select n from gone where id = any($16::text[]))) end
union all
select claim.*, null, null, null, null from {schema}.claim($8, $9, $10, $11, $12::text[], $13, $14, $15) as claim;

-- name: lock_family
-- commit: suspends on children; no child can arrive until we commit
select total - arrived from {schema}.family where parent = $1 and name = $2 for update;

-- name: missing
select coalesce((select total - arrived from {schema}.family where parent = $1 and name = $2), 0);

-- name: arrive
-- commit: settled children; each counts once, as job.arrived shows
with come as (select * from unnest($1::text[], $2::text[], $3::bigint[]) as come (parent, name, more)),
locked as (
  select family.parent, family.name from {schema}.family join come using (parent, name)
  order by family.parent, family.name for update of family
)
update {schema}.family set arrived = family.arrived + come.more
from come join locked using (parent, name)
where family.parent = come.parent and family.name = come.name
returning family.parent, family.name, family.total - family.arrived;

-- name: drop_failed
delete from {schema}.step where n = any($1::bigint[]) and state = 'failed'
returning step.n, step.path, step.name, step.state, step.place;

-- name: drop_steps
delete from {schema}.step using unnest($1::bigint[], $2::text[]) as gone (n, path)
where step.n = gone.n and step.path = gone.path
returning step.n, step.path, step.name, step.state, step.place;

-- name: edit_args
-- commit: a replay with edited arguments, or without unreadable options; from now on, long arguments stay in the job's
-- row
update {schema}.job set args = edit.args, digest = edit.digest, options = edit.options
from unnest($1::bigint[], $2::text[], $3::text[], $4::text[]) as edit (n, args, digest, options) where job.n = edit.n;

-- name: set_steps
-- commit, load: step records that belong to changes, which are already checked. Returns the written ones and whether
-- each is new: one that replaced a started step keeps its place.
with own as materialized (
  select *, pg_catalog.nextval('{schema}.step_place') as place
  from unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::text[],
    $9::text[], $10::bigint[]) as new (n, epoch, path, name, state, started_at, finished_at, error, result, tries)
), written as (
  insert into {schema}.step (n, path, place, name, state, epoch, started_at, finished_at, error, result, tries)
  select n, path, place, name, state, epoch, started_at, finished_at, error, result, tries from own
  on conflict (n, path) do update set state = excluded.state, epoch = excluded.epoch,
    started_at = excluded.started_at, finished_at = excluded.finished_at, error = excluded.error,
    result = excluded.result, tries = excluded.tries
  where step.state = 'started'
  returning n, path, name, state, place
)
select written.n, written.path, written.name, written.state, written.place, written.place = own.place
from written join own on own.n = written.n and own.path = written.path;

-- name: add_steps
-- record: one fenced write for many steps; done and failed records stay, started ones are replaced. The lock keeps the
-- lease until we commit. The same statement counts the steps by name: one that replaced a started step keeps its place
-- and isn't new. A job with more counters than $11 may have no room for these names: then nothing is written, and
-- `hold_jobs` and `set_steps` do it. Returns the written steps, and the job's number if its counters aren't valid.
with new as materialized (
  select * from unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[],
    $8::text[], $9::text[], $10::bigint[]) with ordinality
  as new (job, epoch, path, name, state, started_at, finished_at, error, result, tries, nth)
), held as materialized (
  select job.n, job.id, job.epoch, job.summed = job.version as is_counted,
    (select pg_catalog.count(*) from {schema}.summary where summary.n = job.n) as names
  from {schema}.job
  where job.n = any(array(select name.n from {schema}.name where name.id = any($1::text[])))
    and job.state = 'active'
  order by job.n for no key update
), own as materialized (
  select *, pg_catalog.nextval('{schema}.step_place') as place
  from (
    select held.n, held.is_counted, new.* from new join held on held.id = new.job and held.epoch = new.epoch
    where not exists (select 1 from held where names > $11::bigint) order by nth
  ) as ordered
), written as (
  insert into {schema}.step (n, path, place, name, state, epoch, started_at, finished_at, error, result, tries)
  select n, path, place, name, state, epoch, started_at, finished_at, error, result, tries from own
  on conflict (n, path) do update set state = excluded.state, epoch = excluded.epoch,
    started_at = excluded.started_at, finished_at = excluded.finished_at, error = excluded.error,
    result = excluded.result, tries = excluded.tries
  where step.state = 'started'
  returning n, path, name, state, place
), counted as (
  insert into {schema}.summary (n, name, started, done, failed, last, path)
  select written.n, written.name,
    pg_catalog.count(*) filter (where written.state = 'started')
      - pg_catalog.count(*) filter (where written.place <> own.place) as started,
    pg_catalog.count(*) filter (where written.state = 'done') as done,
    pg_catalog.count(*) filter (where written.state = 'failed') as failed,
    coalesce(pg_catalog.max(own.place) filter (where written.place = own.place), 0) as last,
    coalesce((pg_catalog.array_agg(own.path order by own.place desc) filter (where written.place = own.place))[1], '')
      as path
  from written join own on own.n = written.n and own.path = written.path
  where not pg_catalog.starts_with(written.path, '~')
  group by written.n, written.name
  on conflict (n, name) do update set started = summary.started + excluded.started, done = summary.done + excluded.done,
    failed = summary.failed + excluded.failed, last = greatest(summary.last, excluded.last),
    path = case when excluded.last > summary.last then excluded.path else summary.path end
)
select own.nth, case when own.is_counted then null else own.n end
from own join written on written.n = own.n and written.path = own.path;

-- name: hold_jobs
-- record: locks the leases of these jobs until we commit
select job.n, job.id, job.epoch, coalesce(job.summed = job.version, false) from {schema}.job
where job.n = any(array(select name.n from {schema}.name where name.id = any($1::text[]))) and job.state = 'active'
order by job.n for no key update;

-- name: add_counts
-- commit, record: counts of steps. Each name has its own counter until there are $8; further names share the counter
-- without a name.
insert into {schema}.summary (n, name, started, done, failed, last, path)
select n, counter, pg_catalog.sum(started)::bigint, pg_catalog.sum(done)::bigint, pg_catalog.sum(failed)::bigint,
  pg_catalog.max(last), (pg_catalog.array_agg(path order by last desc))[1]
from (
  select more.*, case when is_known then name
      when (select pg_catalog.count(*) from {schema}.summary where summary.n = more.n and summary.name <> '')
        + pg_catalog.row_number() over (partition by n, is_known order by nth) <= $8::bigint then name
      else '' end as counter
  from (
    select given.*, exists (
        select 1 from {schema}.summary where summary.n = given.n and summary.name = given.name offset 0
      ) as is_known
    from unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[])
      with ordinality as given (n, name, started, done, failed, last, path, nth)
  ) as more
) as named
group by n, counter
on conflict (n, name) do update set started = summary.started + excluded.started, done = summary.done + excluded.done,
  failed = summary.failed + excluded.failed, last = greatest(summary.last, excluded.last),
  path = case when excluded.last > summary.last then excluded.path else summary.path end;

-- name: find_last
-- commit: the last step of a name, after its last one was dropped
update {schema}.summary set last = coalesce(remaining.place, 0), path = coalesce(remaining.path, '')
from unnest($1::bigint[], $2::text[], $3::bigint[]) as gone (n, name, place)
left join lateral (
  select step.place, step.path from {schema}.step
  where step.n = gone.n and step.name = gone.name and not pg_catalog.starts_with(step.path, '~')
  order by step.place desc limit 1
) as remaining on true
where summary.n = gone.n and summary.name = gone.name and summary.last = gone.place;

-- name: find_last_other
-- commit: the same for the names without their own counter
update {schema}.summary set last = coalesce(remaining.place, 0), path = coalesce(remaining.path, '')
from unnest($1::bigint[], $2::bigint[]) as gone (n, place)
left join lateral (
  select step.place, step.path from {schema}.step
  where step.n = gone.n and not pg_catalog.starts_with(step.path, '~') and not exists (
    select 1 from {schema}.summary as named where named.n = gone.n and named.name = step.name and named.name <> '' offset 0
  )
  order by step.place desc limit 1
) as remaining on true
where summary.n = gone.n and summary.name = '' and summary.last = gone.place;

-- name: lock_uncounted
-- record: jobs whose counters aren't valid and that haven't ended
select n from {schema}.job where n = any($1::bigint[]) and summed is distinct from version order by n for no key update;

-- name: forget_counts
delete from {schema}.summary where n = any($1::bigint[]);

-- name: recount
-- record, load: counts all steps of jobs without counters, the first names separately
insert into {schema}.summary (n, name, started, done, failed, last, path)
select n, counter, pg_catalog.sum(started)::bigint, pg_catalog.sum(done)::bigint, pg_catalog.sum(failed)::bigint,
  pg_catalog.max(last), (pg_catalog.array_agg(path order by last desc))[1]
from (
  select *, case when pg_catalog.row_number() over (partition by n order by first) <= $2::bigint then name else '' end
    as counter
  from (
    select n, name, pg_catalog.count(*) filter (where state = 'started') as started,
      pg_catalog.count(*) filter (where state = 'done') as done, pg_catalog.count(*) filter (where state = 'failed') as failed,
      pg_catalog.max(place) as last, pg_catalog.min(place) as first,
      (pg_catalog.array_agg(path order by place desc))[1] as path
    from {schema}.step where n = any($1::bigint[]) and not pg_catalog.starts_with(path, '~') group by n, name
  ) as more
) as named
group by n, counter;

-- name: set_counted
update {schema}.job set summed = version where n = any($1::bigint[]);

-- name: summaries
-- the counters of many jobs; a job whose counters aren't valid has one row that says so
select name.id, name.n, coalesce(held.is_counted, false), counter.name, counter.started, counter.done, counter.failed,
  counter.last, counter.path
from {schema}.name
cross join lateral (
  select summed = version as is_counted from {schema}.job where job.n = name.n
  union all
  select summed = version from {schema}.done where done.n = name.n
  offset 0
) as held
left join lateral (
  select * from {schema}.summary where summary.n = name.n and held.is_counted offset 0
) as counter on true
where name.id = any($1::text[]);

-- name: count_steps
-- summaries: the same for jobs whose counters aren't valid
select n, counter, pg_catalog.sum(started)::bigint, pg_catalog.sum(done)::bigint, pg_catalog.sum(failed)::bigint,
  pg_catalog.max(last), (pg_catalog.array_agg(path order by last desc))[1]
from (
  select *, case when pg_catalog.row_number() over (partition by n order by first) <= $2::bigint then name else '' end
    as counter
  from (
    select n, name, pg_catalog.count(*) filter (where state = 'started') as started,
      pg_catalog.count(*) filter (where state = 'done') as done, pg_catalog.count(*) filter (where state = 'failed') as failed,
      pg_catalog.max(place) as last, pg_catalog.min(place) as first,
      (pg_catalog.array_agg(path order by place desc))[1] as path
    from {schema}.step where n = any($1::bigint[]) and not pg_catalog.starts_with(path, '~') group by n, name
  ) as more
) as named
group by n, counter;

-- name: place_of
-- steps_page: a step's position in the order of first writes
select step.place from {schema}.name cross join lateral (
  select place from {schema}.step where step.n = name.n and step.path = $2 offset 0
) as step
where name.id = $1;

-- name: steps_page
select step.path, step.name, step.state, step.epoch, step.error, step.started_at, step.finished_at, step.tries
from {schema}.name cross join lateral (
  select * from {schema}.step
  where step.n = name.n and step.place > $2 and not pg_catalog.starts_with(step.path, '~')
  order by step.place limit $3
) as step
where name.id = $1 order by step.place;

-- name: standing
-- record: the existing records in place of those that weren't written
select name.id, step.epoch, step.path, step.name, step.state, step.result, step.error, step.started_at, step.finished_at,
  step.tries
from unnest($1::text[], $2::text[]) as asked (job, path)
cross join lateral (select id, n from {schema}.name where name.id = asked.job offset 0) as name
cross join lateral (select * from {schema}.step where step.n = name.n and step.path = asked.path offset 0) as step;

-- Transactional steps. Statements that belong together are sent as one text, which costs one round trip.

-- name: look_step
-- transact: the existing record, if the lease is still current; and the mark of a store that was moved
select name.id, step.epoch, step.path, step.name, step.state, step.result, step.error, step.started_at, step.finished_at,
  step.tries, (select value from {schema}.record where record.name = 'moved')
from {schema}.name
cross join lateral (
  select 1 from {schema}.job where job.n = name.n and job.epoch = $2 and job.state = 'active' offset 0
) as held
left join lateral (select * from {schema}.step where step.n = name.n and step.path = $3 offset 0) as step on true
where name.id = $1;

-- name: begin_step
-- transact: sets the mark that identifies this transaction at its end; if its worker vanishes, it ends after this time
begin isolation level read committed read write;
set local statement_timeout = '30s';
set local idle_in_transaction_session_timeout = '30s';
set local lock_timeout = '15s';
set local holdfast.transaction = 'held';

-- name: check_step
-- transact: checks deferred constraints now, while everything is as the body left it. Then: is this still the
-- transaction that we began, and has it left our tables alone? Each use of a table holds a lock until the end, however
-- it was made. From here to the commit takes only a moment: a process that sleeps in between must not block the rescue
-- of its job.
set constraints all immediate;
reset role;
set local search_path = pg_catalog;
set local statement_timeout = '30s';
set local lock_timeout = '15s';
set local idle_in_transaction_session_timeout = '5s';
do $$
declare
  touched text;
begin
  if current_setting('holdfast.transaction', true) is distinct from 'held' then
    raise exception 'another transaction' using errcode = 'HF001';
  end if;
  select relname into touched from pg_locks join pg_class on pg_class.oid = pg_locks.relation
  where pid = pg_backend_pid() and locktype = 'relation' and relnamespace = to_regnamespace('{schema}') limit 1;
  if found then
    raise exception '%', touched using errcode = 'HF002';
  end if;
end $$;

-- name: commit_step
commit;

-- name: rollback_step
rollback;

-- name: tidy_session
-- transact: resets what a body may have left on its connection
set session authorization default;
reset all;
close all;
unlisten *;
select pg_catalog.pg_advisory_unlock_all();
discard temp;
discard sequences;

-- name: steps
select name.id, step.epoch, step.path, step.name, step.state, step.result, step.error, step.started_at, step.finished_at,
  step.tries
from {schema}.name cross join lateral (select * from {schema}.step where step.n = name.n offset 0) as step
where name.id = $1 order by step.place;

-- name: steps_under
select name.id, step.epoch, step.path, step.name, step.state, step.result, step.error, step.started_at, step.finished_at,
  step.tries
from {schema}.name cross join lateral (
  select * from {schema}.step
  where step.n = name.n and step.path >= $2 and ($3::text is null or step.path < $3) and pg_catalog.starts_with(step.path, $2)
    and ($4::text is null or step.state = $4)
  offset 0
) as step
where name.id = any($1::text[]) order by step.place;

-- name: prune
select {schema}.prune($1, $2);

-- name: add_day
select {schema}.add_day($1);

-- name: drop_day
select {schema}.drop_day();

-- name: analyze
analyze {schema}.job, {schema}.name;

-- name: get
select whole.* from {schema}.name cross join lateral (
  select * from {schema}.live where live.n = name.n
  union all
  select * from {schema}.ended where ended.n = name.n
) as whole
where name.id = any($1::text[]);

-- find: scans by id, from either end; or by (state, id), by (parent, id), or over expiring jobs.

-- name: find
select whole.* from {schema}.name cross join lateral (
  select * from {schema}.live where live.n = name.n
  union all
  select * from {schema}.ended where ended.n = name.n
  offset 0
) as whole
where name.id > $1 and ($3::text is null or whole.queue = $3) and ($4::text is null or whole.type = $4)
order by name.id limit $2;

-- name: find_newest
select whole.* from {schema}.name cross join lateral (
  select * from {schema}.live where live.n = name.n
  union all
  select * from {schema}.ended where ended.n = name.n
  offset 0
) as whole
where name.id < $1 and ($3::text is null or whole.queue = $3) and ($4::text is null or whole.type = $4)
order by name.id desc limit $2;

-- name: find_live
select * from {schema}.live
where state = $5 and state <> 'active' and id > $1 and ($3::text is null or queue = $3) and ($4::text is null or type = $4)
order by id limit $2;

-- name: find_live_newest
select * from {schema}.live
where state = $5 and state <> 'active' and id < $1 and ($3::text is null or queue = $3) and ($4::text is null or type = $4)
order by id desc limit $2;

-- name: find_active
select * from {schema}.live
where state = 'active' and id > $1 and ($3::text is null or queue = $3) and ($4::text is null or type = $4)
order by id limit $2;

-- name: find_active_newest
select * from {schema}.live
where state = 'active' and id < $1 and ($3::text is null or queue = $3) and ($4::text is null or type = $4)
order by id desc limit $2;

-- name: find_ended
select * from {schema}.ended
where state = $5 and id > $1 and ($3::text is null or queue = $3) and ($4::text is null or type = $4)
order by id limit $2;

-- name: find_ended_newest
select * from {schema}.ended
where state = $5 and id < $1 and ($3::text is null or queue = $3) and ($4::text is null or type = $4)
order by id desc limit $2;

-- name: find_children
select * from (
  select * from {schema}.live where parent = $5 union all select * from {schema}.ended where parent = $5
) as whole
where id > $1 and ($3::text is null or queue = $3) and ($4::text is null or type = $4)
  and ($6::text[] is null or state = any($6))
order by id limit $2;

-- name: find_children_newest
select * from (
  select * from {schema}.live where parent = $5 union all select * from {schema}.ended where parent = $5
) as whole
where id < $1 and ($3::text is null or queue = $3) and ($4::text is null or type = $4)
  and ($6::text[] is null or state = any($6))
order by id desc limit $2;

-- name: find_expired
select * from {schema}.live
where n = any(array(select {schema}.expired($5))) and state in ('scheduled', 'available', 'pending', 'retryable') and id > $1
  and ($3::text is null or queue = $3) and ($4::text is null or type = $4)
  and ($6::text[] is null or state = any($6)) and ($7::text is null or parent = $7)
order by id limit $2;

-- name: find_expired_newest
select * from {schema}.live
where n = any(array(select {schema}.expired($5))) and state in ('scheduled', 'available', 'pending', 'retryable') and id < $1
  and ($3::text is null or queue = $3) and ($4::text is null or type = $4)
  and ($6::text[] is null or state = any($6)) and ($7::text is null or parent = $7)
order by id desc limit $2;

-- search: as find, but a walk reads at most $5 jobs of its index. The second statement says where it stopped.

-- name: search
select * from (
  select whole.* from (select id, n from {schema}.name where id > $1 order by id limit $5) as name
  cross join lateral (
    select * from {schema}.live where live.n = name.n
    union all
    select * from {schema}.ended where ended.n = name.n
    offset 0
  ) as whole
) as read
where ($3::text is null or queue = $3) and ($4::text is null or type = $4)
order by id limit $2;

-- name: search_end
select count(*), max(id collate "C")
from (select id from {schema}.name where id > $1 order by id limit $2) as read;

-- name: search_live
select * from (
  select * from {schema}.live where state = $6 and state <> 'active' and id > $1 order by id limit $5
) as read
where ($3::text is null or queue = $3) and ($4::text is null or type = $4)
order by id limit $2;

-- name: search_live_end
select count(*), max(id collate "C")
from (select id from {schema}.job where state = $3 and state <> 'active' and id > $1 order by id limit $2) as read;

-- name: search_ended
select * from (
  select * from {schema}.ended where state = $6 and id > $1 order by id limit $5
) as read
where ($3::text is null or queue = $3) and ($4::text is null or type = $4)
order by id limit $2;

-- name: search_ended_end
select count(*), max(id collate "C")
from (select id from {schema}.done where state = $3 and id > $1 order by id limit $2) as read;

-- name: search_newest
select * from (
  select whole.* from (select id, n from {schema}.name where id < $1 order by id desc limit $5) as name
  cross join lateral (
    select * from {schema}.live where live.n = name.n
    union all
    select * from {schema}.ended where ended.n = name.n
    offset 0
  ) as whole
) as read
where ($3::text is null or queue = $3) and ($4::text is null or type = $4)
order by id desc limit $2;

-- name: search_newest_end
select count(*), min(id collate "C")
from (select id from {schema}.name where id < $1 order by id desc limit $2) as read;

-- name: search_live_newest
select * from (
  select * from {schema}.live where state = $6 and state <> 'active' and id < $1 order by id desc limit $5
) as read
where ($3::text is null or queue = $3) and ($4::text is null or type = $4)
order by id desc limit $2;

-- name: search_live_newest_end
select count(*), min(id collate "C")
from (select id from {schema}.job where state = $3 and state <> 'active' and id < $1 order by id desc limit $2) as read;

-- name: search_ended_newest
select * from (
  select * from {schema}.ended where state = $6 and id < $1 order by id desc limit $5
) as read
where ($3::text is null or queue = $3) and ($4::text is null or type = $4)
order by id desc limit $2;

-- name: search_ended_newest_end
select count(*), min(id collate "C")
from (select id from {schema}.done where state = $3 and id < $1 order by id desc limit $2) as read;

-- name: with_key
-- a key is found type by type: there are few types, and each has an index of its keys
with recursive kinds (type) as (
  select min(type) from {schema}.key
  union all
  select (select min(key.type) from {schema}.key where key.type > kinds.type) from kinds where kinds.type is not null
)
select key.job from kinds join {schema}.key on key.type = kinds.type and key.key = $1;

-- name: count
select queue, state, pg_catalog.sum(jobs)::bigint from {schema}.tally group by queue, state
having pg_catalog.sum(jobs) operator(pg_catalog.<>) 0;

-- name: ready_types
select type from {schema}.ready_types($1, $2) as type
union
select type from {schema}.waiting_keys(null) as key cross join lateral {schema}.types_behind(key, $1) as type
limit $2;

-- name: history
select name.id, told.version, told.at, told.event, told.before, told.after, told.actor, told.epoch, told.note
from {schema}.name cross join lateral (
  select * from {schema}.told where told.n = name.n and told.version > $2 offset 0
) as told
where name.id = $1 order by told.version limit $3;

-- name: records
select name, value, version, at from {schema}.record
where name >= $1 and pg_catalog.starts_with(name, $1) and value is not null order by name;

-- name: record_version
select case when value is null then 0 else version end from {schema}.record where name = $1;

-- name: put_record
insert into {schema}.record as held (name, value, version, at)
select $1, $2::text, 1, {schema}.now_ms()
where $3::bigint is null or $3 = 0 or exists (select 1 from {schema}.record where name = $1)
on conflict (name) do update set value = excluded.value, version = held.version + 1, at = excluded.at
where $3 is null or $3 = case when held.value is null then 0 else held.version end
returning version, at;

-- name: next_due
-- wait: when the next job of these queues becomes due, soon or just now; or can be retried after lost workers;
-- or when there is a key to look at
select pg_catalog.min(run_at) from pg_catalog.unnest($1::text[]) as asked (queue) cross join lateral (
  (select run_at from {schema}.job
   where state in ('scheduled', 'retryable', 'pending') and job.queue = asked.queue and run_at > $2
   order by run_at limit 1)
  union all
  (select run_at from {schema}.job
   where state = 'available' and recoveries > 1 and job.queue = asked.queue and run_at > $2
   order by run_at limit 1)
  union all
  (select at from {schema}.recheck where recheck.queue = asked.queue and at > $2 order by at limit 1)
  union all
  (select at from {schema}.recheck where recheck.queue is null and at > $2 order by at limit 1)
) as next;

-- Shared limits.

-- name: admit
-- admit: the answers, in the order of the asks
select * from {schema}.admit_many($1);

-- name: recheck_limit
-- put_record: claims look at all keys of a limit
select {schema}.recheck_limit($1);

-- name: usage
-- the settings of a limit, then for each of its keys: valid permits, waiting jobs, and its bucket
with held as (
  select permit.key, pg_catalog.count(*) as number from {schema}.permit
  where (permit.key = $1::text or (permit.key > $1::text || '/' and permit.key < $1::text || '0'))
    and case when until is null then exists (
        select 1 from {schema}.job where job.n = permit.n and job.epoch = permit.epoch and job.state = 'active' offset 0
      ) else until > {schema}.now_ms() end
  group by permit.key
), waiting as (
  select limit_key as key, pg_catalog.count(*) as number from {schema}.job
  where state = 'available' and (limit_key = $1::text or (limit_key > $1::text || '/' and limit_key < $1::text || '0'))
  group by limit_key
), parked as (
  select limit_key as key, pg_catalog.count(*) as number from {schema}.job
  where state = 'pending' and (limit_key = $1::text or (limit_key > $1::text || '/' and limit_key < $1::text || '0'))
  group by limit_key
), bucket as (
  select pg_catalog.substr(name, 8) as key, value from {schema}.record
  where value is not null
    and (name = 'bucket/' || $1::text or (name > 'bucket/' || $1::text || '/' and name < 'bucket/' || $1::text || '0'))
)
select every.key, coalesce(held.number, 0), coalesce(waiting.number, 0) + coalesce(parked.number, 0), bucket.value,
  (select value from {schema}.record where name = 'limit/' || $1::text), {schema}.now_ms()
from (
  select key from held union select key from waiting union select key from parked union select key from bucket
) as every
left join held using (key) left join waiting using (key) left join parked using (key) left join bucket using (key)
order by every.key;

-- name: old_buckets
-- prune: buckets that nobody has used since then, with the settings of their limits
select name, value, version,
  (select value from {schema}.record where record.name = 'limit/' || pg_catalog.split_part(bucket.name, '/', 2)),
  {schema}.now_ms()
from {schema}.record as bucket
where name > 'bucket/' and name < 'bucket0' and at < {schema}.now_ms() - $1::bigint
  and not (name > 'bucket/~budget/' and name < 'bucket/~budget0')  -- these go with their jobs
limit $2;

-- name: forget_budgets
-- prune: the budgets of jobs that are gone
delete from {schema}.record where name = any(array(
  select budget.name from {schema}.record as budget
  where budget.name > 'bucket/~budget/' and budget.name < 'bucket/~budget0'
    and not exists (select 1 from {schema}.name where id = pg_catalog.split_part(budget.name, '/', 3) offset 0)
  union all
  select budget.name from {schema}.record as budget
  where budget.name > 'budget/' and budget.name < 'budget0'
    and not exists (select 1 from {schema}.name where id = pg_catalog.split_part(budget.name, '/', 2) offset 0)
));

-- name: forget_turns
-- prune: the rounds of fair keys that nobody has continued since then
delete from {schema}.record where name = any(array(
  select turn.name from {schema}.record as turn
  where turn.name > 'fair/' and turn.name < 'fair0' and turn.at < {schema}.now_ms() - $1::bigint
  limit 1000 for update skip locked
));

-- name: recheck_budget
-- put_record: more is left of a budget
select {schema}.recheck_keys(array[$1::text], {schema}.now_ms());

-- name: drop_buckets
-- prune: a bucket that somebody holds is in use
delete from {schema}.record where name = any(array(
  select bucket.name from unnest($1::text[], $2::bigint[]) as given (name, version)
  join {schema}.record as bucket on bucket.name = given.name and bucket.version = given.version
  for update of bucket skip locked
));

-- name: beat
-- stores a worker's status, and returns everything it must know
with told as (
  insert into {schema}.worker (name, presence, beat_at, beat_ms, lease_ms, lock)
  values ($1, $2, {schema}.now_ms(), $3, $4, $5)
  on conflict (name) do update set presence = excluded.presence, beat_at = excluded.beat_at,
    beat_ms = excluded.beat_ms, lease_ms = excluded.lease_ms, lock = excluded.lock
  returning beat_at
)
select 'now' as what, '' as name, beat_at as number from told
union all
select 'held', id, epoch from {schema}.job where worker = $1 and state = 'active'
union all
select 'cancelled', name.id, 0 from {schema}.name join {schema}.done using (n)
where name.id = any($6::text[]) and done.state = 'cancelled'
union all
select 'record', name, 0 from {schema}.record
where name = any($7::text[]) and value is not null;

-- name: leave
with gone as (delete from {schema}.worker where name = $1)
select 'now' as what, '' as name, {schema}.now_ms() as number
union all
select 'held', id, epoch from {schema}.job where worker = $1 and state = 'active'
union all
select 'cancelled', name.id, 0 from {schema}.name join {schema}.done using (n)
where name.id = any($2::text[]) and done.state = 'cancelled'
union all
select 'record', name, 0 from {schema}.record
where name = any($3::text[]) and value is not null;

-- name: lock
-- the proof of life: a shared lock, so that it never waits; it ends with the connection
select pg_catalog.pg_try_advisory_lock_shared($1::bigint);

-- name: unlock
select pg_catalog.pg_advisory_unlock_shared($1::bigint);

-- name: workers
-- the workers' statuses, whether each one's proof of life exists, and how long the server has been up
select worker.name, presence, beat_at, beat_ms, lease_ms, lock is not null,
  exists (
    select 1 from pg_catalog.pg_locks
    where locktype = 'advisory' and objsubid = 1 and granted
      and database = (select oid from pg_catalog.pg_database where datname = pg_catalog.current_database())
      and classid::bigint = (lock >> 32) & 4294967295 and objid::bigint = lock & 4294967295
  ),
  {schema}.now_ms(),
  pg_catalog.floor(extract(epoch from pg_catalog.clock_timestamp() - pg_catalog.pg_postmaster_start_time())
    operator(pg_catalog.*) 1000)::bigint
from {schema}.worker order by worker.name;

-- name: forget_workers
-- removes the statuses of dead workers, once all their jobs are rescued
delete from {schema}.worker
where name = any($1::text[]) and beat_at = any($2::bigint[])
  and not exists (select 1 from {schema}.job where job.worker = worker.name and state = 'active');

-- name: notify
select pg_catalog.pg_notify(channel, payload)
from unnest($1::text[], $2::text[]) as told (channel, payload);

-- Moving all jobs to and from another store.

-- name: number
-- in_order: a job's position in the order of insertion
select n from {schema}.name where id = $1;

-- name: in_order
select * from (
  (select * from {schema}.live where n > $1 order by n limit $2)
  union all
  (select * from {schema}.ended where n > $1 order by n limit $2)
) as whole order by n limit $2;

-- name: histories
select name.id, told.version, told.at, told.event, told.before, told.after, told.actor, told.epoch, told.note
from {schema}.name cross join lateral (select * from {schema}.told where told.n = name.n offset 0) as told
where name.id = any($1::text[]) order by name.n, told.version;

-- name: all_steps
select name.id, step.epoch, step.path, step.name, step.state, step.result, step.error, step.started_at, step.finished_at,
  step.tries
from {schema}.name cross join lateral (select * from {schema}.step where step.n = name.n offset 0) as step
where name.id = any($1::text[]) order by step.place;

-- name: holders
-- holders: who has these keys
select key.type, key.key, key.job, key.digest, key.until
from unnest($1::text[], $2::text[]) as asked(type, key) join {schema}.key using (type, key);

-- name: keys
select type, key, job, digest, until from {schema}.key
where (type, key) > ($1, $2) order by type, key limit $3;

-- name: all_records
select name, coalesce(value, ''), version, at from {schema}.record order by name;

-- name: lock_all
-- put_record of the mark: waits for all running writes; later ones meet the guard, or no guard any more
lock table {schema}.job, {schema}.done, {schema}.step, {schema}.record in share row exclusive mode;

-- name: add_guard
-- put_record of the mark: refuses every write while it exists. A store without a mark pays nothing for this. `store.py`
-- recognises `HF003`.
create or replace function {schema}.guard() returns trigger language plpgsql set search_path = pg_catalog as $$
begin
  if current_setting('holdfast.loading', true) is distinct from 'on' then
    raise exception using errcode = 'HF003',
      message = coalesce((select value from {schema}.record where name = 'moved'), '');
  end if;
  return new;
end $$;

-- name: set_guard
do $$ begin
  drop trigger if exists moved on {schema}.job;
  drop trigger if exists moved on {schema}.done;
  drop trigger if exists moved on {schema}.step;
  drop trigger if exists moved on {schema}.record;
  create trigger moved before insert or update or delete on {schema}.job
    for each statement execute function {schema}.guard();
  create trigger moved before insert or update or delete on {schema}.done
    for each statement execute function {schema}.guard();
  create trigger moved before insert or update or delete on {schema}.step
    for each statement execute function {schema}.guard();
  create trigger moved before insert or update on {schema}.record
    for each row when (new.name <> 'moved') execute function {schema}.guard();
end $$;

-- name: drop_guard
do $$ begin
  drop trigger if exists moved on {schema}.job;
  drop trigger if exists moved on {schema}.done;
  drop trigger if exists moved on {schema}.step;
  drop trigger if exists moved on {schema}.record;
end $$;

-- name: mark
-- load, put_record of the mark: the content of the mark, locked until we commit
select value from {schema}.record where name = 'moved' for share;

-- name: loading
-- load: lets this transaction pass the guard
select pg_catalog.set_config('holdfast.loading', 'on', true);

-- name: load_jobs
-- load: jobs unchanged, those that don't exist yet, in the given order
with new as materialized (
  select * from unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::bigint[],
    $8::text[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::text[], $15::bigint[],
    $16::bigint[], $17::bigint[], $18::boolean[], $19::text[], $20::text[], $21::text[], $22::text[], $23::text[],
    $24::text[], $25::text[], $26::bigint[], $27::bigint[], $28::text[], $29::text[], $30::text[], $31::bigint[]) with ordinality
  as new (id, type, queue, priority, parent, family, expires_at, state, version, run_at, epoch, attempt, recoveries,
    worker, claimed_at, finished_at, prune_at, arrived, waits, inbox, error, result, args, digest, key, key_until,
    created_at, options, limit_key, first_state, first_epoch, nth)
), named as (
  insert into {schema}.name (id, n)
  select id, (({schema}.now_ms() / 86400000) << 40) + pg_catalog.nextval('{schema}.job_n')
  from (select id from new order by nth) as ordered
  on conflict (id) do nothing
  returning id, n
), bodies as (
  insert into {schema}.body (n, args) select n, args from named join new using (id) where pg_catalog.length(args) > 1000
), jobs as (
  insert into {schema}.job (n, id, type, queue, args, digest, priority, key, key_until, parent, family, created_at,
    expires_at, options, state, version, run_at, epoch, attempt, recoveries, worker, claimed_at, waits, result,
    error, finished_at, prune_at, inbox, arrived, first_state, first_epoch, summed, limit_key)
  select n, id, type, queue, case when pg_catalog.length(args) <= 1000 then args end, digest, priority, key, key_until,
    parent, family, created_at, expires_at, options, state, version, run_at, epoch, attempt, recoveries, worker,
    claimed_at, waits, result, error, finished_at, prune_at, inbox, arrived, first_state, first_epoch, version, limit_key
  from named join new using (id) where state not in ('completed', 'discarded', 'cancelled')
), ended as (
  insert into {schema}.done (n, id, type, queue, args, digest, priority, key, key_until, parent, family, created_at,
    expires_at, options, state, version, run_at, epoch, attempt, recoveries, worker, claimed_at, waits, result,
    error, finished_at, prune_at, inbox, arrived, first_state, first_epoch, summed)
  select n, id, type, queue, case when pg_catalog.length(args) <= 1000 then args end, digest, priority, key, key_until,
    parent, family, created_at, expires_at, options, state, version, run_at, epoch, attempt, recoveries, worker,
    claimed_at, waits, result, error, finished_at, prune_at, inbox, arrived, first_state, first_epoch, version
  from named join new using (id) where state in ('completed', 'discarded', 'cancelled')
), families as (
  insert into {schema}.family (parent, name, total, arrived)
  select parent, coalesce(family, ''), pg_catalog.count(*), 0 from named join new using (id)
  where parent is not null and not arrived
  group by 1, 2 order by 1, 2
  on conflict (parent, name) do update set total = family.total + excluded.total
), counted as (
  insert into {schema}.tally (queue, state, jobs)
  select queue, state, pg_catalog.count(*) from named join new using (id) group by queue, state
), rechecked as (
  insert into {schema}.recheck (queue, key, at)
  select distinct queue, limit_key, case when state = 'available' then run_at else created_at end
  from named join new using (id)
  where limit_key is not null and state in ('available', 'pending')
)
select id, n from named;

-- name: load_entries
insert into {schema}.entry (n, version, at, event, before, after, actor, epoch, note)
select * from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[],
  $8::bigint[], $9::text[]);

-- name: load_keys
-- `created_at` isn't needed any more: it was only compared with `until`
insert into {schema}.key (type, key, job, digest, until, created_at)
select *, 0 from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[])
on conflict (type, key) do nothing;

-- name: load_records
-- a version is never used again, neither one from the other store nor one of this store
insert into {schema}.record as held (name, value, version, at)
select * from unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[])
on conflict (name) do update set value = excluded.value, version = greatest(excluded.version, held.version + 1),
  at = excluded.at
where held.value is distinct from excluded.value or held.version < excluded.version;

-- name: empty
truncate {schema}.name, {schema}.job, {schema}.done, {schema}.body, {schema}.entry, {schema}.step, {schema}.key, {schema}.family,
  {schema}.tally, {schema}.summary, {schema}.permit, {schema}.recheck;

-- name: blob_begin
select pg_catalog.nextval('{schema}.blob_content');

-- name: blob_part
insert into {schema}.blob_part (content, nth, bytes) values ($1, $2, $3);

-- name: blob_put
-- the content that an object had before is deleted with `blob_drop_content`
with before as (
  select content from {schema}.blob where key = $1
)
insert into {schema}.blob (key, content, size, at)
values ($1, $2, $3, (extract(epoch from pg_catalog.clock_timestamp()) * 1000)::bigint)
on conflict (key) do update set content = excluded.content, size = excluded.size, at = excluded.at
returning (select content from before);

-- name: blob_drop_content
delete from {schema}.blob_part where content = $1;

-- name: blob_mark
insert into {schema}.blob (key, content, size, at)
select key, 0, 0, (extract(epoch from pg_catalog.clock_timestamp()) * 1000)::bigint
from unnest($1::text[]) as key order by key
on conflict (key) do update set at = excluded.at;

-- name: blob_get
select content, size from {schema}.blob where key = $1;

-- name: blob_read
select bytes from {schema}.blob_part where content = $1 and nth = $2;

-- name: blob_list
select key, size, at from {schema}.blob where key > $1 and pg_catalog.starts_with(key, $2) order by key limit $3;

-- name: blob_move
with gone as (
  delete from {schema}.blob where key = $1 returning content, size
)
insert into {schema}.blob (key, content, size, at)
select $2, content, size, (extract(epoch from pg_catalog.clock_timestamp()) * 1000)::bigint from gone
on conflict (key) do update set content = excluded.content, size = excluded.size, at = excluded.at;

-- name: blob_delete
with gone as (
  delete from {schema}.blob where key = any($1::text[]) returning content
)
delete from {schema}.blob_part where content in (select content from gone where content > 0);

-- Every statement of the SQLite engine, one each, by name. Parameters have names. The comment says which act it serves.

-- name: begin
begin immediate;

-- name: commit
commit;

-- name: rollback
rollback;

-- name: lazily
-- before a claim: its commit doesn't wait for the disk
pragma synchronous = normal;

-- name: durably
-- before everything else: an acknowledged write survives a power cut
pragma synchronous = full;

-- name: next_job
-- insert: the next number; nobody else can write while we hold the lock
select coalesce(max(n), 0) + 1 from job;

-- name: known_ids
select id from job where id in (select value from json_each(:ids));

-- name: key
-- insert and holders: who has a key
select job, digest, until from key where type = :type and key = :key;

-- name: set_key
insert into key (type, key, job, digest, until) values (:type, :key, :job, :digest, :until)
on conflict (type, key) do update set job = excluded.job, digest = excluded.digest, until = excluded.until;

-- name: name_holders
-- insert: who has these unique names, and the state each is in, if it is still there
select key.key, key.job, key.digest, key.until, job.state
from json_each(:names) as asked cross join key on key.type = :type and key.key = asked.value
left join job on job.id = key.job;

-- name: add_job
insert into job (n, id, type, queue, priority, state, version, run_at, epoch, attempt, recoveries, worker, claimed_at,
  expires_at, finished_at, prune_at, parent, family, arrived, waits, inbox, error, result, summed, fair)
values (:n, :id, :type, :queue, :priority, :state, :version, :run_at, :epoch, :attempt, :recoveries, :worker,
  :claimed_at, :expires_at, :finished_at, :prune_at, :parent, :group, :arrived, :waits, :inbox, :error, :result, :version,
  :fair);

-- name: add_lone_job
-- insert: one new job without key, parent, limits and fair key, with the next number; an existing one is left unchanged
insert into job (id, type, queue, priority, state, version, run_at, epoch, attempt, recoveries, expires_at, arrived, waits,
  summed)
values (:id, :type, :queue, :priority, :state, 1, :run_at, 0, 1, 0, :expires_at, 0, :waits, 1)
on conflict (id) do nothing;

-- name: add_body
insert into body (n, args, digest, key, key_until, created_at, options)
values (:n, :args, :digest, :key, :key_until, :created_at, :options);

-- name: add_entry
insert into entry (job, version, at, event, before, after, actor, epoch, note)
values (:n, :version, :at, :event, :before, :after, :by, :epoch, :note);

-- name: grow_family
insert into family (parent, name, total, arrived) values (:parent, :name, :more, 0)
on conflict (parent, name) do update set total = total + excluded.total;

-- name: arrive
-- commit: a settled child; it counts once, as job.arrived shows
update family set arrived = arrived + 1 where parent = :parent and name = :name returning total - arrived;

-- name: missing
select coalesce((select total - arrived from family where parent = :parent and name = :name), 0);

-- name: add_tally
insert into tally (queue, state, jobs) values (:queue, :state, :more)
on conflict (queue, state) do update set jobs = jobs + excluded.jobs;

-- name: due
-- claim: the due jobs of one queue, to promote (scheduled, retryable) or activate (pending)
select n, id, state, version, epoch, run_at, limit_key from job
where run_at is not null and finished_at is null and worker is null and state <> 'available' and state <> 'review'
  and queue = :queue and run_at <= :now
  and (expires_at is null or expires_at > :now)
order by run_at, n limit :limit;

-- name: promote
-- claim: writes a change that only time causes; thousands of jobs may become due at the same moment
update job set state = :state, version = :version, run_at = :run_at, waits = null, summed = summed + 1 where n = :n;

-- name: next_due
-- wait: when the next job of a queue becomes due, soon or just now
select min(run_at) from job
where run_at is not null and finished_at is null and worker is null and state <> 'available' and state <> 'review'
  and queue = :queue and run_at > :since;

-- name: next_back
-- wait: when the next job of a queue can be retried after it lost more than one worker
select min(run_at) from job
where state = 'available' and recoveries > 1 and queue = :queue and run_at > :since;

-- name: ready
-- claim: available → active, the jobs of one type without limits in order; the claim merges the types
select * from whole
where state = 'available' and limit_key is null and fair is null and queue = :queue and type = :type and run_at <= :now
  and (expires_at is null or expires_at > :now)
order by priority desc, run_at, n limit :limit;

-- name: ready_behind
-- claim: the same for the jobs behind one key
select * from whole
where state = 'available' and limit_key = :key and queue = :queue and type = :type and run_at <= :now
  and (expires_at is null or expires_at > :now)
order by priority desc, run_at, n;

-- name: ready_among
-- claim: which of these types have available jobs
select asked.value from json_each(:types) as asked
where exists (
  select 1 from job where state = 'available' and limit_key is null and fair is null and queue = :queue and type = asked.value);

-- name: unlimited_types
-- claim of any type: jumps from one type to the next, never from job to job
with recursive kind (type) as (
  select min(type) from job where state = 'available' and limit_key is null and fair is null and queue = :queue
  union all
  select (
    select min(type) from job
    where state = 'available' and limit_key is null and fair is null and queue = :queue and type > kind.type)
  from kind where kind.type is not null
)
select type from kind where type is not null;

-- name: waiting_firsts
-- claim: the first job of each type behind each of these keys
with recursive kind (key, type) as (
  select value, (select min(type) from job where state = 'available' and limit_key = value and queue = :queue)
  from json_each(:keys)
  union all
  select key, (
    select min(type) from job
    where state = 'available' and limit_key = kind.key and queue = :queue and type > kind.type)
  from kind where kind.type is not null
)
select key, kind.type, priority, run_at, n from kind cross join job on n = (
  select n from job
  where state = 'available' and limit_key = kind.key and queue = :queue and type = kind.type and run_at <= :now
    and (expires_at is null or expires_at > :now)
  order by priority desc, run_at, n limit 1);

-- name: ready_types
-- ready_types: the types of all of them, from one type to the next
with recursive kind (type) as (
  select min(type) from job where state = 'available' and limit_key is null and fair is null and queue = :queue
  union all
  select (
    select min(type) from job
    where state = 'available' and limit_key is null and fair is null and queue = :queue and type > kind.type)
  from kind where kind.type is not null
), fairly (type) as (
  select min(type) from job where state = 'available' and fair is not null and queue = :queue
  union all
  select (select min(type) from job where state = 'available' and fair is not null and queue = :queue and type > fairly.type)
  from fairly where fairly.type is not null
), limited (key, type) as (
  select key, (
    select min(type) from job where state = 'available' and limit_key = waiting.key and queue = waiting.queue)
  from holdfast_waiting as waiting where queue = :queue
  union all
  select key, (
    select min(type) from job
    where state = 'available' and limit_key = limited.key and queue = :queue and type > limited.type)
  from limited where limited.type is not null
)
select type from kind where type is not null
union
select type from fairly where type is not null
union
select type from limited where type is not null
order by 1 limit :limit;

-- Fair keys: see core/fairness.py. `key` is that of a limit, or null.

-- name: has_fair
-- claim: whether a queue has available jobs with fair keys
select exists (select 1 from job where state = 'available' and fair is not null and queue = :queue);

-- name: fair_types
-- claim: the types of those without limits, from one type to the next
with recursive kind (type) as (
  select min(type) from job where state = 'available' and fair is not null and queue = :queue
  union all
  select (select min(type) from job where state = 'available' and fair is not null and queue = :queue and type > kind.type)
  from kind where kind.type is not null
)
select type from kind where type is not null;

-- name: fair_level
-- claim: the highest priority of which there is something to take
select priority from job
where state = 'available' and fair is not null and queue = :queue and type = :type and limit_key is :key
  and priority < :below and run_at <= :now and (expires_at is null or expires_at > :now)
order by priority desc limit 1;

-- name: fair_keys
-- claim: from one fair key to the next, never from job to job
with recursive next (fair, number) as (
  select (
    select fair from job
    where state = 'available' and fair is not null and queue = :queue and type = :type and limit_key is :key
      and priority = :level and fair > :after and fair <= :until
      and run_at <= :now and (expires_at is null or expires_at > :now)
    order by fair limit 1), 1
  union all
  select (
    select fair from job
    where state = 'available' and fair is not null and queue = :queue and type = :type and limit_key is :key
      and priority = :level and fair > next.fair and fair <= :until
      and run_at <= :now and (expires_at is null or expires_at > :now)
    order by fair limit 1), number + 1
  from next where next.fair is not null and number < :most
)
select fair from next where fair is not null;

-- name: fair_jobs
-- claim: the next jobs of one fair key
select * from whole
where state = 'available' and fair = :fair and queue = :queue and type = :type and limit_key is :key
  and priority = :level and run_at >= :run_at and (run_at, n) > (:run_at, :n)
  and run_at <= :now and (expires_at is null or expires_at > :now)
order by run_at, n limit :limit;

-- name: plain_behind
-- claim: the jobs without a fair key behind a limit's key
select * from whole
where state = 'available' and limit_key = :key and fair is null and queue = :queue and type = :type and run_at <= :now
  and (expires_at is null or expires_at > :now)
order by priority desc, run_at, n;

-- name: forget_turns
-- prune: rounds that nobody continues
delete from record where name >= 'fair/' and name < 'fair0' and at < :before;

-- name: heads
-- commit: the stored heads of these jobs, to compare with what the changes expect
select id, state, version, epoch, inbox, arrived, worker, n from job where id in (select value from json_each(:ids));

-- name: update_job
-- claim and commit: writes the state of all jobs but those that become due
update job set state = :state, version = :version, run_at = :run_at, epoch = :epoch, attempt = :attempt,
  recoveries = :recoveries, worker = :worker, claimed_at = :claimed_at, finished_at = :finished_at,
  prune_at = :prune_at, arrived = :arrived, waits = :waits, inbox = :inbox, error = :error, result = :result,
  summed = summed + 1, parked_key = null
where n = :n;

-- name: edit_body
-- commit: a replay with edited arguments, or without unreadable options
update body set args = :args, digest = :digest, options = :options where n = :n;

-- name: add_steps
-- record: one fenced write for many steps that have no record yet: usually all of them
insert into step (job, path, name, state, epoch, started_at, finished_at, error, result, tries)
select job.n, row.value ->> 2, row.value ->> 3, row.value ->> 4, row.value ->> 1, row.value ->> 5, row.value ->> 6,
  row.value ->> 7, row.value ->> 8, row.value ->> 9
from json_each(:steps) as row cross join job on job.id = row.value ->> 0  -- "cross": never a scan of all jobs
where job.epoch = row.value ->> 1 and job.state = 'active'
on conflict (job, path) do nothing;

-- name: steps_since
-- record: the steps that `add_steps` has written
select (select id from job where job.n = step.job), name, state, n, substr(path, 1, 1) = '~' from step where n > :fence;

-- name: replace_steps
-- record: the same for steps with a record: done and failed ones stay, started ones are replaced. The steps that were
-- just written have numbers above the fence.
insert into step (job, path, name, state, epoch, started_at, finished_at, error, result, tries)
select job.n, row.value ->> 2, row.value ->> 3, row.value ->> 4, row.value ->> 1, row.value ->> 5, row.value ->> 6,
  row.value ->> 7, row.value ->> 8, row.value ->> 9
from json_each(:steps) as row cross join job on job.id = row.value ->> 0
where job.epoch = row.value ->> 1 and job.state = 'active'
on conflict (job, path) do update set state = excluded.state, epoch = excluded.epoch, started_at = excluded.started_at,
  finished_at = excluded.finished_at, error = excluded.error, result = excluded.result, tries = excluded.tries
where step.state = 'started' and step.n <= :fence
returning (select id from job where job.n = step.job), name, state, n, substr(path, 1, 1) = '~';

-- name: set_step
-- commit: a step record that belongs to a change, which is already checked
insert into step (job, path, name, state, epoch, started_at, finished_at, error, result, tries)
values (:n, :path, :name, :state, :epoch, :started_at, :finished_at, :error, :result, :tries)
on conflict (job, path) do update set state = excluded.state, epoch = excluded.epoch, started_at = excluded.started_at,
  finished_at = excluded.finished_at, error = excluded.error, result = excluded.result, tries = excluded.tries
where step.state = 'started'
returning name, state, n, substr(path, 1, 1) = '~';

-- name: drop_step
delete from step where job = :n and path = :path
returning name, state, n, substr(path, 1, 1) = '~';

-- name: drop_failed
delete from step where job = :n and state = 'failed'
returning name, state, n, substr(path, 1, 1) = '~';

-- name: last_step
-- commit: steps that are written from now on have higher numbers
select coalesce(max(n), 0) from step;

-- name: add_count
-- record and commit: one counter of a job
update summary set started = started + :started, done = done + :done, failed = failed + :failed,
  last = max(last, :last)
where job = (select n from job where id = :job) and name = :name;

-- name: counters
-- record and commit: a job's number, whether its counters are valid, and how many names have one
select n, summed is version, (select count(*) from summary where job = job.n and name <> '') from job where id = :job;

-- name: new_count
insert into summary (job, name, started, done, failed, last) values (:n, :name, :started, :done, :failed, :last);

-- name: find_last
-- commit: the last step of a name, after its last one was dropped
update summary set last = coalesce(
  (select max(n) from step where step.job = :n and step.name = :name and substr(path, 1, 1) <> '~'), 0)
where job = :n and name = :name and last = :last;

-- name: find_last_other
update summary set last = coalesce(
  (select max(n) from step
   where step.job = :n and substr(path, 1, 1) <> '~'
     and step.name not in (select name from summary where job = :n and name <> '')), 0)
where job = :n and name = '' and last = :last;

-- name: forget_summary
delete from summary where job = :n;

-- name: recount
-- record and load: counts all steps of a job without counters, the first names separately
insert into summary (job, name, started, done, failed, last)
select job, case when nth <= :most then name else '' end, sum(started), sum(done), sum(failed), max(last) from (
  select job, name, sum(state = 'started') as started, sum(state = 'done') as done, sum(state = 'failed') as failed,
    max(n) as last, row_number() over (order by min(n)) as nth
  from step where job = :n and substr(path, 1, 1) <> '~' group by job, name
)
group by 1, 2;

-- name: set_summed
update job set summed = version where n = :n;

-- name: summaries
-- the counters of many jobs; a job whose counters aren't valid has one row without a name
select job.id, job.n, job.summed is job.version, name, started, done, failed, last,
  (select path from step where step.n = last)
from json_each(:ids) as asked cross join job on job.id = asked.value
left join summary on summary.job = job.n and job.summed is job.version;

-- name: count_steps
-- summaries: the same for a job whose counters aren't valid
select counter, started, done, failed, last, (select path from step where step.n = last) from (
  select case when nth <= :most then name else '' end as counter, sum(started) as started, sum(done) as done,
    sum(failed) as failed, max(last) as last
  from (
    select name, sum(state = 'started') as started, sum(state = 'done') as done, sum(state = 'failed') as failed,
      max(n) as last, row_number() over (order by min(n)) as nth
    from step where job = :n and substr(path, 1, 1) <> '~' group by name
  )
  group by 1
);

-- name: place_of
-- steps_page: a step's position in the order of first writes
select step.n from step join job on job.n = step.job where job.id = :job and path = :path;

-- name: steps_page
-- by the index of the paths, which also has the order: reads only the rows of the page
select path, name, state, epoch, error, started_at, finished_at, tries from step
where n in (
  select step.n from job cross join step on step.job = job.n
  where job.id = :job and step.n > :after and substr(path, 1, 1) <> '~' order by step.n limit :limit
)
order by n;

-- name: step
select job.id, step.epoch, path, name, step.state, step.result, step.error, started_at, step.finished_at, tries
from step join job on job.n = step.job where job.id = :job and path = :path;

-- name: steps
select job.id, step.epoch, path, name, step.state, step.result, step.error, started_at, step.finished_at, tries
from step join job on job.n = step.job where job.id = :job order by step.n;

-- name: steps_under
select job.id, step.epoch, step.path, name, step.state, step.result, step.error, started_at, step.finished_at, tries
from json_each(:jobs) as asked cross join job on job.id = asked.value cross join step on step.job = job.n
where step.path >= :prefix and step.path < :beyond and substr(step.path, 1, length(:prefix)) = :prefix
  and (:state is null or step.state = :state)
order by step.n;

-- name: old
-- prune: terminal jobs whose `prune_at` has passed and that have no unfinished parent or child
select n, id, queue, state, type, key,
  case when instr(options, '"unique"') and json_valid(options) then json_extract(options, '$.unique.key') end
from job join body using (n)
where prune_at <= :now and finished_at is not null
  and not exists (select 1 from job as child where child.parent = job.id and child.finished_at is null)
  and not exists (select 1 from job as parent where parent.id = job.parent and parent.finished_at is null)
order by prune_at, n limit :limit;

-- name: forget_job
delete from job where n = :n;

-- name: forget_body
delete from body where n = :n;

-- name: forget_entries
delete from entry where job = :n;

-- name: forget_steps
delete from step where job = :n;

-- name: forget_families
delete from family where parent = :id;

-- name: forget_permits
delete from holdfast_permit where job = :id;

-- name: forget_key
delete from key where type = :type and key = :key and job = :id and (until is null or until <= :now);

-- name: bury_name
-- prune: the unique name of a job stays while its window is open, with the job's last state
update key set digest = digest || ' ' || :state where type = :type and key = :key and job = :id;

-- name: forget_over_keys
delete from key where until <= :now;

-- name: get
select * from whole
where id in (select value from json_each(:ids));

-- find: scans by id, from either end; or by (state, id), by what workers hold, by (parent, id), or over expiring jobs.

-- name: find
select * from whole
where id > :after
  and (:queue is null or queue = :queue) and (:type is null or type = :type)
  and (:parent is null or parent = :parent)
order by id limit :limit;

-- name: find_newest
select * from whole
where id < :after
  and (:queue is null or queue = :queue) and (:type is null or type = :type)
  and (:parent is null or parent = :parent)
order by id desc limit :limit;

-- name: find_state
select * from whole
where state = :state and state <> 'active' and id > :after
  and (:queue is null or queue = :queue) and (:type is null or type = :type)
  and (:parent is null or parent = :parent)
order by id limit :limit;

-- name: find_state_newest
select * from whole
where state = :state and state <> 'active' and id < :after
  and (:queue is null or queue = :queue) and (:type is null or type = :type)
  and (:parent is null or parent = :parent)
order by id desc limit :limit;

-- name: find_active
select * from whole
where n in (select n from job indexed by job_held where state = 'active') and +id > :after
  and (:queue is null or queue = :queue) and (:type is null or type = :type)
order by id limit :limit;

-- name: find_active_newest
select * from whole
where n in (select n from job indexed by job_held where state = 'active') and +id < :after
  and (:queue is null or queue = :queue) and (:type is null or type = :type)
order by id desc limit :limit;

-- name: find_children
select * from whole
where parent = :parent and id > :after
  and (:queue is null or queue = :queue) and (:type is null or type = :type)
  and (:states is null or state in (select value from json_each(:states)))
order by id limit :limit;

-- name: find_children_newest
select * from whole
where parent = :parent and id < :after
  and (:queue is null or queue = :queue) and (:type is null or type = :type)
  and (:states is null or state in (select value from json_each(:states)))
order by id desc limit :limit;

-- name: find_expired
-- `+id`: don't use the index of the ids, of which there may be a million
select * from whole
where expires_at is not null and finished_at is null and state <> 'active' and state <> 'review'
  and expires_at <= :expires_before and +id > :after
  and (:states is null or state in (select value from json_each(:states)))
  and (:queue is null or queue = :queue) and (:type is null or type = :type)
  and (:parent is null or parent = :parent)
order by id limit :limit;

-- name: find_expired_newest
select * from whole
where expires_at is not null and finished_at is null and state <> 'active' and state <> 'review'
  and expires_at <= :expires_before and +id < :after
  and (:states is null or state in (select value from json_each(:states)))
  and (:queue is null or queue = :queue) and (:type is null or type = :type)
  and (:parent is null or parent = :parent)
order by id desc limit :limit;

-- search: as find, but a walk reads at most `scan` jobs of its index. The second statement says where it stopped.

-- name: search
select * from whole where n in (
  select n from (select n, id, queue, type from job where id > :after order by id limit :scan)
  where (:queue is null or queue = :queue) and (:type is null or type = :type)
  order by id limit :limit
) order by id;

-- name: search_end
select count(*), max(id)
from (select id from job where id > :after order by id limit :scan);

-- name: search_newest
select * from whole where n in (
  select n from (select n, id, queue, type from job where id < :after order by id desc limit :scan)
  where (:queue is null or queue = :queue) and (:type is null or type = :type)
  order by id desc limit :limit
) order by id desc;

-- name: search_newest_end
select count(*), min(id)
from (select id from job where id < :after order by id desc limit :scan);

-- name: search_state
select * from whole where n in (
  select n from (select n, id, queue, type from job where state = :state and state <> 'active' and id > :after order by id limit :scan)
  where (:queue is null or queue = :queue) and (:type is null or type = :type)
  order by id limit :limit
) order by id;

-- name: search_state_end
select count(*), max(id)
from (select id from job where state = :state and state <> 'active' and id > :after order by id limit :scan);

-- name: search_state_newest
select * from whole where n in (
  select n from (select n, id, queue, type from job where state = :state and state <> 'active' and id < :after order by id desc limit :scan)
  where (:queue is null or queue = :queue) and (:type is null or type = :type)
  order by id desc limit :limit
) order by id desc;

-- name: search_state_newest_end
select count(*), min(id)
from (select id from job where state = :state and state <> 'active' and id < :after order by id desc limit :scan);

-- name: with_key
-- a key is found type by type: there are few types, and each has an index of its keys
with recursive kinds (type) as (
  select min(type) from key
  union all
  select (select min(key.type) from key where key.type > kinds.type) from kinds where kinds.type is not null
)
select job from kinds join key on key.type = kinds.type and key.key = :key;

-- name: count
select queue, state, jobs from tally where jobs <> 0;

-- name: history
select job.id, entry.version, entry.at, event, before, after, actor, entry.epoch, note
from entry join job on job.n = entry.job
where job.id = :job and entry.version > :after order by entry.version limit :limit;

-- name: records
select name, value, version, at from record
where name >= :prefix and substr(name, 1, length(:prefix)) = :prefix and value is not null order by name;

-- name: record
select value, version from record where name = :name;

-- name: put_record
insert into record (name, value, version, at) values (:name, :value, :version, :at)
on conflict (name) do update set value = excluded.value, version = excluded.version, at = excluded.at;

-- name: held
-- beat: the leases that a worker holds
select id, epoch from job indexed by job_held where worker = :worker and state = 'active' order by id;

-- name: holders
-- the workers that hold leases: the status of such a worker isn't removed
select distinct worker from job indexed by job_held where state = 'active';

-- Shared limits: which jobs may start (`permits.Permits`), and which wait behind a key.

-- name: permits_of
select key, job, path, epoch, try_number, until from holdfast_permit where job = :job;

-- name: count_permits
select count(*) from holdfast_permit where key = :key;

-- name: stale_permits
-- claim and admit: the permits whose leases are over, and reservations that nobody came for
select key, job, path, epoch, try_number, until from holdfast_permit as permit
where key = :key and case
  when until is null
  then not exists (select 1 from job where id = permit.job and epoch = permit.epoch and state = 'active')
  else until <= :now end;

-- name: count_reserved
-- claim: the permits that are kept for jobs that were woken
select count(*) from holdfast_permit where key = :key and until > :now;

-- name: next_end
-- claim: when the first reservation of a key ends
select min(until) from holdfast_permit where key = :key;

-- name: put_permit
insert into holdfast_permit (key, job, path, epoch, try_number, until)
values (:key, :job, :path, :epoch, :try_number, :until)
on conflict (key, job, path) do update set epoch = excluded.epoch, try_number = excluded.try_number,
  until = excluded.until;

-- name: drop_permit
delete from holdfast_permit where key = :key and job = :job and path = :path;

-- name: put_bucket
insert into record (name, value, version, at) values (:name, :value, 1, :at)
on conflict (name) do update set value = excluded.value, version = record.version + 1, at = excluded.at;

-- name: old_buckets
-- prune: what may be full and unused by now
select name, value from record
where name >= 'bucket/' and name < 'bucket0' and value is not null and at < :before
  and not (name >= 'bucket/~budget/' and name < 'bucket/~budget0');  -- these go with their jobs

-- name: forget_record
delete from record where name = :name;

-- name: look_at
-- insert, claim, commit: a job waits behind a key; a claim of its queue must look at it from then on
insert into holdfast_waiting (key, queue, at, stands) values (:key, :queue, :at, 0)
on conflict (key, queue) do update set at = min(coalesce(at, excluded.at), coalesce(excluded.at, at)), stands = 0;

-- name: recheck
-- commit and admit: a permit ended; whoever waits behind its key may have it
update holdfast_waiting set at = min(coalesce(at, :at), :at), stands = 0 where key = :key returning queue;

-- name: recheck_budget
-- admit: more is left of a budget; jobs wait behind keys that begin with its own
update holdfast_waiting set at = min(coalesce(at, :at), :at), stands = 0
where key = :limit or (key >= :first and key < :beyond) returning queue;

-- name: recheck_limit
-- put_record: the settings of a limit have changed
update holdfast_waiting set at = 0, stands = 0
where key = :limit or (key >= :first and key < :beyond);

-- name: keys_to_look_at
-- claim: those that have waited longest for a look come first; and whether jobs are parked there
select key, exists (
  select 1 from job where state = 'pending' and parked_key = waiting.key and queue = waiting.queue)
from holdfast_waiting as waiting where queue = :queue and at <= :now order by at, key limit :limit;

-- name: next_look
-- wait: when a claim must look at a key of a queue
select min(at) from holdfast_waiting where queue = :queue and at > :since and not stands;

-- name: parked
-- claim: pending → available, the jobs whose steps wait for a permit of a key
select * from whole
where n in (select n from job where state = 'pending' and parked_key = :key and queue = :queue order by n limit :limit)
order by n;

-- name: place_behind
-- insert, commit, load: a job with limits, or one that parks; the statements before it leave others behind no key
update job set limit_key = :limit_key, parked_key = :parked_key, fair = :fair where n = :n;

-- name: move_behind
-- claim: a job that found no room behind one key waits behind another one
update job set limit_key = :key where n = :n;

-- name: waited_for
-- claim: which of these keys somebody still waits for
select value from json_each(:keys)
where exists (select 1 from job where state = 'available' and limit_key = value and queue = :queue)
  or exists (select 1 from job where state = 'pending' and parked_key = value and queue = :queue);

-- name: look_again
-- claim: after it has looked at a key
update holdfast_waiting set at = :at, stands = :stands where key = :key and queue = :queue;

-- name: forget_waiting
delete from holdfast_waiting where key = :key and queue = :queue;

-- name: find_waiting
-- prune: a program of the version before tells nobody that it has put back a job with limits. From one key and queue to
-- the next, never from job to job.
insert into holdfast_waiting (key, queue, at, stands)
with recursive place (key, queue) as (
  select limit_key, queue from job where n = (
    select n from job where state = 'available' and limit_key > '' order by limit_key, queue limit 1)
  union all
  select limit_key, job.queue from place cross join job on n = coalesce(
    (select n from job where state = 'available' and limit_key = place.key and queue > place.queue
     order by limit_key, queue limit 1),
    (select n from job where state = 'available' and limit_key > place.key order by limit_key, queue limit 1))
)
select key, queue, 0, 0 from place where true
on conflict (key, queue) do nothing;

-- name: used_keys
-- usage: the keys of a limit, in order
select key from holdfast_permit where key = :limit or (key >= :first and key < :beyond)
union
select key from holdfast_waiting where key = :limit or (key >= :first and key < :beyond)
union
select substr(name, 8) from record
where value is not null
  and (name = 'bucket/' || :limit or (name >= 'bucket/' || :first and name < 'bucket/' || :beyond))
order by 1;

-- name: count_waiting
-- usage: how many jobs wait for a permit of a key
select (select count(*) from job where state = 'available' and limit_key = :key)
  + (select count(*) from job where state = 'pending' and parked_key = :key);

-- Moving all jobs to and from another store.

-- name: number
-- in_order: a job's position in the order of insertion
select n from job where id = :id;

-- name: in_order
select * from whole where n > :after order by n limit :limit;

-- name: histories
select job.id, entry.version, entry.at, event, before, after, actor, entry.epoch, note
from json_each(:ids) as asked cross join job on job.id = asked.value join entry on entry.job = job.n
order by job.n, entry.version;

-- name: all_steps
select job.id, step.epoch, step.path, step.name, step.state, step.result, step.error, started_at, step.finished_at,
  tries
from json_each(:ids) as asked cross join job on job.id = asked.value join step on step.job = job.n
order by step.n;

-- name: keys
select type, key, job, digest, until from key
where (type, key) > (:type, :key) order by type, key limit :limit;

-- name: all_records
select name, coalesce(value, ''), version, at from record order by name;

-- The guard: triggers that refuse every write while the mark of a move exists. They are created and dropped with the
-- mark, so a store without it pays nothing. A load drops them for its duration, which nobody sees, because it holds the
-- lock.

-- name: guard_insert
create trigger if not exists moved_insert before insert on job begin select raise(abort, 'holdfast: moved'); end;

-- name: guard_update
create trigger if not exists moved_update before update on job begin select raise(abort, 'holdfast: moved'); end;

-- name: guard_delete
create trigger if not exists moved_delete before delete on job begin select raise(abort, 'holdfast: moved'); end;

-- name: guard_step
create trigger if not exists moved_step before insert on step begin select raise(abort, 'holdfast: moved'); end;

-- name: guard_record
create trigger if not exists moved_record before insert on record when new.name <> 'moved'
begin select raise(abort, 'holdfast: moved'); end;

-- name: unguard_insert
drop trigger if exists moved_insert;

-- name: unguard_update
drop trigger if exists moved_update;

-- name: unguard_delete
drop trigger if exists moved_delete;

-- name: unguard_step
drop trigger if exists moved_step;

-- name: unguard_record
drop trigger if exists moved_record;

-- name: load_step
insert into step (job, path, name, state, epoch, started_at, finished_at, error, result, tries)
values (:n, :path, :name, :state, :epoch, :started_at, :finished_at, :error, :result, :tries);

-- name: load_key
insert into key (type, key, job, digest, until) values (:type, :key, :job, :digest, :until)
on conflict (type, key) do nothing;

-- name: load_record
-- a version is never used again, neither one from the other store nor one of this store
insert into record (name, value, version, at) values (:name, :value, :version, :at)
on conflict (name) do update set value = excluded.value, version = max(excluded.version, record.version + 1),
  at = excluded.at
where record.value is not excluded.value or record.version < excluded.version;

-- name: empty_jobs
delete from job;

-- name: empty_bodies
delete from body;

-- name: empty_entries
delete from entry;

-- name: empty_steps
delete from step;

-- name: empty_summaries
delete from summary;

-- name: empty_families
delete from family;

-- name: empty_permits
delete from holdfast_permit;

-- name: empty_waiting
delete from holdfast_waiting;

-- name: empty_keys
delete from key;

-- name: empty_tally
delete from tally;

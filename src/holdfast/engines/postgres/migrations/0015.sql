-- Wake jobs of a queue whose steps wait for a permit of this key, as before (see the fifth migration), while there is room. The
-- permit is kept for a job only if it can start: where a limit of its own is full, those who hold that one may need this permit
-- to end. Answers for how many a permit is kept.
create or replace function {schema}.wake_parked(
  wanted text, one {schema}.kept_key, most bigint, looked_at text[], now_at bigint) returns bigint
language plpgsql volatile as $$
declare
  looked bigint := 0;
  woken bigint;
  more bigint;
  kept bigint := 0;
begin
  loop
    with due as (
      select n from {schema}.job where state = 'pending' and limit_key = one.key and queue = wanted
      order by n limit greatest(least(100 - looked, most - kept, one.at_once - one.held - kept), 0) for update skip locked
    ), moved as (
      update {schema}.job set state = 'available', version = job.version + 1, summed = job.summed + 1, waits = null,
        run_at = now_at, limit_key = (({schema}.limits_of(job.options)).keys)[1]
      where n = any(array(select n from due))
      returning job.n, job.version, job.epoch, job.limit_key, job.options
    ), told as (
      insert into {schema}.entry (n, version, at, event, before, after, actor, epoch, note)
      select n, version, now_at, 'activate', 'pending', 'available', 'limit', epoch, null from moved
    ), able as (
      select n from moved where limit_key is null or not exists (
        select 1 from unnest(({schema}.limits_of(moved.options)).keys) as use (key)
        where use.key <> one.key and {schema}.is_full(use.key, moved.n, now_at)
      )
    ), kept_for as (
      insert into {schema}.permit (key, n, path, epoch, try_number, until)
      select one.key, n, '~reserved', 0, 1, now_at + 30000 from able
      on conflict (key, n, path) do update set until = excluded.until
    ), rechecked as (
      insert into {schema}.recheck (queue, key, at)
      select distinct wanted, limit_key, now_at from moved where limit_key <> all(looked_at)
      union all
      select null, one.key, now_at + 30000 from able having count(*) > 0
    ), counted as (
      insert into {schema}.tally (queue, state, jobs)
      select wanted, 'pending', -count(*) from moved having count(*) > 0
      union all
      select wanted, 'available', count(*) from moved having count(*) > 0
    )
    select (select count(*) from moved), (select count(*) from able) into woken, more;
    looked := looked + woken;
    kept := kept + more;
    exit when woken = more or looked >= 100;
  end loop;
  return kept;
end $$;

-- Whether jobs other than this one have all the permits of a key.
create function {schema}.is_full(wanted text, job_n bigint, now_at bigint) returns boolean language plpgsql stable as $$
declare
  at_once bigint := ({schema}.numbers(
    (select value from {schema}.record where name = 'limit/' || {schema}.limit_of(wanted)),
    '{at_once,burst,refill,period_ms}', '{at_once,burst}'))[1];
begin
  return at_once is not null and at_once <= (
    select count(*) from {schema}.permit
    where permit.key = wanted and permit.n <> job_n and case when until is null then exists (
        select 1 from {schema}.job where job.n = permit.n and job.epoch = permit.epoch and job.state = 'active' offset 0
      ) else until > now_at end
  );
end $$;

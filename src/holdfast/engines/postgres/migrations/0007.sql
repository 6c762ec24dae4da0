-- Unique jobs. Their names are kept among the keys, under the type '~unique'; the digest of such a key is a stamp: when its
-- job was made, its window in milliseconds (0: none), the states that its submit asked for, and, once the job was pruned, the
-- state in which it had ended. `core.unique` says what it means.
--
-- Programs of the version before go on: they take no unique names, and they prune by the new function.

-- Whether a new job may take a key or a name from the one who holds it. Called for a row that is locked, and looks for the
-- holder in a statement of its own, so that it sees a job that was committed while we waited for the row.
create function {schema}.is_free(held {schema}.key, new_digest text, new_created_at bigint) returns boolean
language plpgsql volatile as $$
declare
  window_ms bigint;
  states text[];
  number bigint;
  last text;
begin
  if held.until <= new_created_at then return true; end if;
  if held.type <> '~unique' then return false; end if;
  window_ms := pg_catalog.split_part(new_digest, ' ', 2)::bigint;
  if window_ms > 0 and pg_catalog.split_part(held.digest, ' ', 1)::bigint + window_ms <= new_created_at then
    return true;
  end if;
  states := pg_catalog.string_to_array(pg_catalog.split_part(new_digest, ' ', 3), ',');
  select name.n into number from {schema}.name where name.id = held.job;
  if found then
    select job.state into last from {schema}.job where job.n = number
    union all select done.state from {schema}.done where done.n = number;
    return last is null or last <> all(states);
  end if;
  if held.until is null then return true; end if;
  last := pg_catalog.split_part(held.digest, ' ', 4);
  return case when last = '' then not states && array['completed', 'discarded', 'cancelled'] else last <> all(states) end;
end $$;

-- Prune, as before, and unique names are freed, or left as tombstones while their windows are open.
create or replace function {schema}.prune(most bigint, fold_at bigint) returns bigint
language plpgsql volatile set search_path = pg_catalog as $$
declare
  now_at bigint := {schema}.now_ms();
  pruned bigint;
begin
  with old as materialized (
    select done.n from {schema}.done
    where done.prune_at <= now_at
      and not exists (select 1 from {schema}.job as child where child.parent = done.id offset 0)
      and not exists (select 1 from {schema}.name join {schema}.job using (n) where name.id = done.parent offset 0)
    order by done.prune_at, done.n limit most
    for update skip locked
  ), gone as (
    delete from {schema}.done using old where done.n = old.n
    returning done.n, done.id, done.queue, done.state, done.type, done.key,
      substring(done.options from '"unique":\{"key":"([0-9a-f]+)"') as unique_name
  ), names as (
    delete from {schema}.name using gone where name.id = gone.id
  ), keys as (
    delete from {schema}.key using gone
    where key.type = gone.type and key.key = gone.key and key.job = gone.id
      and (key.until is null or key.until <= now_at)
  ), freed as (
    delete from {schema}.key using gone
    where key.type = '~unique' and key.key = gone.unique_name and key.job = gone.id
      and (key.until is null or key.until <= now_at)
  ), buried as (
    update {schema}.key set digest = key.digest || ' ' || gone.state from gone
    where key.type = '~unique' and key.key = gone.unique_name and key.job = gone.id and key.until > now_at
  ), families as (
    delete from {schema}.family using gone where family.parent = gone.id
  ), summaries as (
    delete from {schema}.summary where summary.n = any(array(select n from gone))
  ), bodies as (
    delete from {schema}.body_rest using gone where body_rest.n = gone.n
  ), entries as (
    delete from {schema}.entry_rest using gone where entry_rest.n = gone.n
  ), steps as (
    delete from {schema}.step_rest using gone where step_rest.n = gone.n
  ), counted as (
    insert into {schema}.tally (queue, state, jobs)
    select queue, state, -count(*) from gone group by queue, state
  )
  select count(*) into pruned from gone;
  delete from {schema}.key where until <= now_at;
  if (select count(*) from (select 1 from {schema}.tally limit fold_at) as few) >= fold_at then
    -- Rows that another one sums up just now are left to it.
    with few as (
      select ctid from {schema}.tally limit 100000 for update skip locked
    ), folded as (
      delete from {schema}.tally where ctid = any(array(select ctid from few)) returning queue, state, jobs
    )
    insert into {schema}.tally (queue, state, jobs)
    select queue, state, sum(jobs) from folded group by queue, state having sum(jobs) <> 0;
  end if;
  return pruned;
end $$;

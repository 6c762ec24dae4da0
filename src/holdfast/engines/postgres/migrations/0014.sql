-- Steps ask for permits, and give them back, many at once. `admit` answers one ask after another, with several statements
-- each; this does the same for all asks of a call together. What is out of the ordinary it leaves to `admit`: corrections of
-- a cost, an ask before a permit that is given back, two asks of one step, and a step that has a permit already.
--
-- Programs of the version before still call `admit`: both hold the same locks and write the same rows.
create function {schema}.admit_many(given text)
returns table (admitted boolean, full_key text, free_at bigint, topics text[]) language plpgsql volatile
set search_path = pg_catalog set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
  asks jsonb := given;
  ask record;
  now_at bigint;
  mark text := (select value from {schema}.record where name = 'moved');
  job_ids text[];
  job_ns bigint[];
  job_epochs bigint[];
  keys text[];
  opened text[];
  every {schema}.kept_key[];
  one {schema}.kept_key;
  spot integer;
  freed record;
  backs text[];
  news text[] := '{}';
  new_keys text[] := '{}';
  new_ns bigint[] := '{}';
  new_paths text[] := '{}';
  new_epochs bigint[] := '{}';
  new_tries bigint[] := '{}';
begin
  if mark is not null then
    raise exception using errcode = 'HF003', message = mark;
  end if;
  if (
    select bool_or(settles) or count(*) <> count(distinct (job, path)) or max(nth) filter (where is_back) > min(nth) filter (where not is_back)
    from (
      select nth, each ->> 'job' as job, each ->> 'path' as path, jsonb_array_length(each -> 'settles') > 0 as settles,
        jsonb_array_length(each -> 'uses') = 0 as is_back
      from jsonb_array_elements(asks) with ordinality as every_ask (each, nth)
    ) as seen
  ) then
    return query select * from {schema}.admit(given);
    return;
  end if;
  select array_agg(held.id), array_agg(held.n), array_agg(held.epoch) into job_ids, job_ns, job_epochs
  from (
    select job.id, job.n, job.epoch from {schema}.job
    where job.n = any(array(
        select name.n from {schema}.name
        where name.id = any(array(select each ->> 'job' from jsonb_array_elements(asks) as each))
      ))
      and (job.n is null or job.state = 'active')  -- by the key: an `or` proves no partial index's condition
    order by job.n for no key update
  ) as held;
  if exists (
    select 1 from {schema}.permit
    where n = any(job_ns) and path = any(array(
      select each ->> 'path' from jsonb_array_elements(asks) as each where jsonb_array_length(each -> 'uses') > 0
      union all select '~reserved'
    ))
  ) then
    return query select * from {schema}.admit(given);
    return;
  end if;
  keys := array(
    select distinct use ->> 'key' collate "C" from jsonb_array_elements(asks) as each
    cross join lateral jsonb_array_elements(each -> 'uses') as use order by 1
  );
  every := {schema}.open_keys(keys, true, null);
  opened := {schema}.keys_of(every);
  if cardinality(opened) < cardinality(keys) then  -- a bucket was removed just now: once more
    raise serialization_failure;
  end if;
  now_at := {schema}.now_ms();
  backs := array(
    select job_ns[array_position(job_ids, each ->> 'job')] || ' ' || (each ->> 'path') from jsonb_array_elements(asks) as each
    where jsonb_array_length(each -> 'uses') = 0
      and job_epochs[array_position(job_ids, each ->> 'job')] = (each ->> 'epoch')::bigint
  );

  for freed in
    with ended as (
      delete from {schema}.permit
      where n = any(job_ns) and n || ' ' || path = any(backs)  -- one look at a job's permits, and not one for each step
      returning key
    )
    select key, count(*) as number from ended group by key order by key
  loop
    spot := array_position(opened, freed.key);
    if spot is not null then
      one := every[spot];
      one.held := one.held - freed.number;
      every[spot] := one;
    end if;
    if {schema}.has_at_once(freed.key) then
      news := news || {schema}.recheck_keys(array[freed.key], now_at);
    end if;
  end loop;
  topics := news;

  for ask in
    select array_position(job_ids, each ->> 'job') as spot, (each ->> 'epoch')::bigint as epoch, each ->> 'path' as path,
      (each ->> 'try_number')::bigint as try_number,
      array(select use ->> 'key' from jsonb_array_elements(each -> 'uses') with ordinality as u (use, n) order by n) as uses,
      array(
        select coalesce((use ->> 'units')::bigint, 1000000)
        from jsonb_array_elements(each -> 'uses') with ordinality as u (use, n) order by n
      ) as units
    from jsonb_array_elements(asks) with ordinality as every_ask (each, nth) order by nth
  loop
    admitted := null;
    full_key := null;
    free_at := null;
    if ask.spot is not null and job_epochs[ask.spot] = ask.epoch then
      admitted := true;
      for use in 1 .. cardinality(ask.uses) loop
        spot := array_position(opened, ask.uses[use]);
        one := every[spot];
        if one.held is null then
          one.held := {schema}.count_permits(one, null, now_at);
          every[spot] := one;
        end if;
        free_at := {schema}.start_time(one, one.held, ask.units[use], now_at);
        if free_at is null or free_at > now_at then
          admitted := false;
          full_key := ask.uses[use];
          exit;
        end if;
      end loop;
      if admitted and cardinality(ask.uses) > 0 then
        free_at := null;
        for use in 1 .. cardinality(ask.uses) loop
          spot := array_position(opened, ask.uses[use]);
          every[spot] := {schema}.started(every[spot], 0, ask.units[use]);
          new_keys := new_keys || ask.uses[use];
          new_ns := new_ns || job_ns[ask.spot];
          new_paths := new_paths || ask.path;
          new_epochs := new_epochs || ask.epoch;
          new_tries := new_tries || ask.try_number;
        end loop;
      end if;
    end if;
    return next;
    topics := null;
  end loop;
  insert into {schema}.permit (key, n, path, epoch, try_number)
  select * from unnest(new_keys, new_ns, new_paths, new_epochs, new_tries);
  perform {schema}.close_keys(every, now_at);
end $$;

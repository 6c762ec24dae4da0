-- Budgets: a budget is a key of the limit `~budget`, with a bucket that never refills and also says what was granted.
--
-- A job that waits for its budget waits behind a key that ends with what its step needs: `~budget/JOB/usd/40000` counts what
-- is left in the bucket of `~budget/JOB/usd`. To those who wait there, the bucket is full if that is enough, and else empty.
-- Programs of the version before go on meanwhile, by the new functions. They don't know budgets: the steps that they run
-- ask for nothing.

-- The key whose bucket counts for a key.
create function {schema}.counted_key(key text) returns text language plpgsql immutable as $$
begin
  return case when key like '~budget/%/%/%' then left(key, -strpos(reverse(key), '/')) else key end;
end $$;

-- What must be left in it; null for a key that isn't one to wait behind for a budget.
create function {schema}.needed_of(key text) returns bigint language plpgsql immutable as $$
begin
  if key not like '~budget/%/%/%' then
    return null;
  end if;
  return coalesce(substring(key from '/(\d{1,18})$')::bigint, 1);
end $$;

-- Lock the buckets of these keys and read them, as before (see the fifth migration), but for budgets.
create or replace function {schema}.open_keys(keys text[], may_wait boolean, now_at bigint) returns {schema}.kept_key[]
language plpgsql volatile as $$
declare
  buckets text[] := array(select distinct 'bucket/' || {schema}.counted_key(key) from unnest(keys) as key);
  missing text[];
  locked text[];
  row record;
  settings bigint[];
  bucket bigint[];
  need bigint;
  one {schema}.kept_key;
  every {schema}.kept_key[] := '{}';
begin
  if may_wait then
    locked := array(
      select name from {schema}.record where name = any(buckets) order by name for update
    );
  else
    locked := array(
      select name from {schema}.record where name = any(buckets) for update skip locked
    );
  end if;
  if cardinality(locked) < cardinality(buckets) then
    missing := array(
      select key from unnest(keys) as key
      where {schema}.counted_key(key) = key
        and not exists (select 1 from {schema}.record where name = 'bucket/' || key offset 0)
        and exists (
          select 1 from {schema}.record where name = 'limit/' || {schema}.limit_of(key) and value is not null offset 0)
    );
    if cardinality(missing) > 0 and {schema}.make_buckets(missing, {schema}.now_ms()) then
      locked := locked || array(
        select name from {schema}.record where name = any(array(select 'bucket/' || key from unnest(missing) as key))
        for update skip locked
      );
    end if;
  end if;
  now_at := coalesce(now_at, {schema}.now_ms());
  for row in
    select asked.key, limits.value as settings, buckets.name as bucket_name, buckets.value as bucket
    from unnest(keys) with ordinality as asked (key, nth)
    left join lateral (
      select value from {schema}.record where name = 'limit/' || {schema}.limit_of(asked.key) offset 0
    ) as limits on true
    left join lateral (
      select name, value from {schema}.record where name = 'bucket/' || {schema}.counted_key(asked.key) offset 0
    ) as buckets on true
    order by asked.nth
  loop
    settings := {schema}.numbers(row.settings, '{at_once,burst,refill,period_ms}', '{at_once,burst}');
    continue when 'bucket/' || {schema}.counted_key(row.key) <> all(locked) and (settings is not null or row.bucket_name is not null);
    bucket := {schema}.numbers(row.bucket, '{tokens,at,closed_until,starts}', '{}');
    if settings[4] <= 0 then
      settings := null;
    end if;
    one := (row.key, settings[1], settings[2], coalesce(settings[3], 0), coalesce(settings[4], 1),
      coalesce(settings[2], 0), now_at, 0, 0, null, false)::{schema}.kept_key;
    if bucket is not null then
      one.tokens := least(one.tokens::numeric, coalesce(bucket[1], 0)::numeric + div(
        greatest(now_at - coalesce(bucket[2], 0), 0)::numeric * one.refill, one.period_ms));
      one.at := greatest(now_at, coalesce(bucket[2], 0));
      one.closed_until := coalesce(bucket[3], 0);
      one.starts := coalesce(bucket[4], 0);
    end if;
    need := {schema}.needed_of(row.key);
    if need is not null then
      one.tokens := case when one.tokens >= need then coalesce(one.burst, 0) else 0 end;
    end if;
    every := every || one;
  end loop;
  return every;
end $$;

-- Write what is left, as before; of a budget also what was granted.
create or replace function {schema}.close_keys(every {schema}.kept_key[], now_at bigint) returns void language plpgsql volatile as $$
declare
  one {schema}.kept_key;
begin
  foreach one in array every loop
    if one.is_changed then
      update {schema}.record
      set value = format(
          '{"tokens":%s,"at":%s,"closed_until":%s,"starts":%s%s}', one.tokens, one.at, one.closed_until, one.starts,
          case when one.key like '~budget/%' then ',"granted":' || coalesce(substring(value from '"granted": *(\d+)'), '0') end),
        version = version + 1, at = now_at
      where name = 'bucket/' || one.key;
    end if;
  end loop;
end $$;

-- Let claims look at these keys, as before, and at those behind which jobs wait for a budget.
create or replace function {schema}.recheck_keys(keys text[], now_at bigint) returns text[] language plpgsql volatile as $$
declare
  behind text[] := keys;
  wanted text;
begin
  foreach wanted in array keys loop
    if wanted like '~budget/%' and {schema}.needed_of(wanted) is null then
      behind := behind || array(
        select distinct limit_key from {schema}.job
        where state = 'pending' and limit_key > wanted || '/' and limit_key < wanted || '0'
      );
    end if;
  end loop;
  insert into {schema}.recheck (queue, key, at) select null, one, now_at from unnest(behind) as one;
  return array(
    select 'limit:' || one from unnest(keys) as one
    union all
    select distinct 'queue:' || queue from unnest(behind) as one cross join lateral {schema}.waiting_queues(one) as queue
  );
end $$;

BEGIN TRANSACTION;
CREATE TABLE body (
  n integer primary key,
  args text not null,
  digest text not null,
  key text,
  key_until integer,
  created_at integer not null,
  options text not null
) strict;
INSERT INTO "body" VALUES(1,'[1]','89366b6ad129e12bc7bf4978b5607c30','k-1',NULL,1794965606725,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(2,'[2]','f9ece9be35f186bab18142baa5317d53',NULL,NULL,1794965606752,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(3,'[3]','e1f2255035568a21f1667b4a391e75f5',NULL,NULL,1794965606763,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(4,'[4]','b9b721b40392eec945cb5938ad5edece','k-2',NULL,1794965606780,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(5,'[3]','9b18605edf39bd02f7c4f4cfcb6305e0',NULL,NULL,1794965606788,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(6,'[3]','bd9ed0b15a32af02bb5893c0c2d9cc45',NULL,NULL,1794965606796,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(7,'[]','bcff928ac5e8272134bbb6034ac58fde',NULL,NULL,1794965606808,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(8,'[]','f1984e18f43ed32e32f8caea4c500102',NULL,NULL,1794965606815,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(9,'[]','4e559ab8e9a655e3c643bf69c09ed0c5',NULL,NULL,1794965606831,'{"retry":{"retries":5,"initial_ms":3600000},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(10,'[]','ed6267b63ec5cb914dd721f0961fd969',NULL,NULL,1794965606840,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(11,'[]','e03df04acbc27b762e7ecbc217c1ffda',NULL,NULL,1794965606856,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(12,'[1]','51879a9dc4d82f48b59a8e4204f8a343',NULL,NULL,1794965606868,'{"retry":{"retries":0},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(13,'[2]','c3c33a0382a1bac1d503044bc29ac910',NULL,NULL,1794965606875,'{"retry":{"retries":0},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(14,'[3]','2b98d7af48e2f289be593dae68054971',NULL,NULL,1794965606917,'{"retry":{"retries":0},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(15,'[5]','8f78020ee7e398c63e4ecfb9adadaaa0',NULL,NULL,1794965606936,'{}');
INSERT INTO "body" VALUES(16,'[0]','9d8c125de23d1275e5043dad071be930',NULL,NULL,1794965607196,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(17,'[1]','9d620bee4532a2234f858b1c6ef183b7',NULL,NULL,1794965607196,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(18,'[2]','d26dbc04f13b5832c402c27284261f57',NULL,NULL,1794965607196,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(19,'["01a1ec49-91c8-7676-86f7-97f27cb4b2e4"]','',NULL,NULL,1794965610845,'{"keep_ms":3456000000000}');
CREATE TABLE entry (                      -- the history: one row for each version of a job
  job integer not null,
  version integer not null,
  at integer not null,
  event text not null,
  before text,
  after text not null,
  actor text not null,
  epoch integer not null,
  note text,
  primary key (job, version)
) strict, without rowid;
INSERT INTO "entry" VALUES(1,1,1794965606725,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(1,2,1794965607181,'claim','available','active','w-first',1,NULL);
INSERT INTO "entry" VALUES(1,3,1794965607196,'complete','active','completed','w-first',1,NULL);
INSERT INTO "entry" VALUES(2,1,1794965606752,'submit',NULL,'scheduled','',0,NULL);
INSERT INTO "entry" VALUES(3,1,1794965606763,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(4,1,1794965606780,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(5,1,1794965606788,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(5,2,1794965607181,'claim','available','active','w-first',1,NULL);
INSERT INTO "entry" VALUES(5,3,1794965610738,'lapse','active','available','w-second',1,'{"lost":"w-first","why":"process 5792 on vm ended without a word; last heard of 3.4 s ago","survived":"1 recorded steps","stage":"draw"}');
INSERT INTO "entry" VALUES(5,4,1794965610745,'claim','available','active','w-second',2,NULL);
INSERT INTO "entry" VALUES(6,1,1794965606796,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(6,2,1794965607181,'claim','available','active','w-first',1,NULL);
INSERT INTO "entry" VALUES(6,3,1794965607240,'suspend','active','pending','w-first',1,'{"waits":["children ~map:upgrades.child#1"]}');
INSERT INTO "entry" VALUES(7,1,1794965606808,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(7,2,1794965607181,'claim','available','active','w-first',1,NULL);
INSERT INTO "entry" VALUES(7,3,1794965607226,'suspend','active','pending','w-first',1,'{"waits":["signal go"]}');
INSERT INTO "entry" VALUES(7,4,1794965610821,'signal','pending','pending','caller',1,'{"signal":"other"}');
INSERT INTO "entry" VALUES(8,1,1794965606815,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(8,2,1794965607181,'claim','available','active','w-first',1,NULL);
INSERT INTO "entry" VALUES(8,3,1794965607226,'rest','active','scheduled','w-first',1,'{"waits":["time, for 1 h at most"]}');
INSERT INTO "entry" VALUES(9,1,1794965606831,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(9,2,1794965607181,'claim','available','active','w-first',1,NULL);
INSERT INTO "entry" VALUES(9,3,1794965607196,'fail','active','retryable','w-first',1,'{"error":"ValueError: not then","attempt":1,"next_try":"in 3 min 28 s"}');
INSERT INTO "entry" VALUES(10,1,1794965606840,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(10,2,1794965607207,'claim','available','active','w-first',1,NULL);
INSERT INTO "entry" VALUES(10,3,1794965610738,'abandon','active','review','w-second',1,'{"lost":"w-first","why":"process 5792 on vm ended without a word; last heard of 3.4 s ago","survived":"1 recorded steps","stage":"draw","in_doubt":["pay#payment 1"]}');
INSERT INTO "entry" VALUES(11,1,1794965606856,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(11,2,1794965607207,'claim','available','active','w-first',1,NULL);
INSERT INTO "entry" VALUES(11,3,1794965607299,'suspend','active','pending','w-first',1,'{"waits":["signal never"]}');
INSERT INTO "entry" VALUES(11,4,1794965610845,'cancel','pending','cancelled','making',1,NULL);
INSERT INTO "entry" VALUES(12,1,1794965606868,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(12,2,1794965607207,'claim','available','active','w-first',1,NULL);
INSERT INTO "entry" VALUES(12,3,1794965607225,'exhaust','active','review','w-first',1,'{"error":"ValueError: broken then","attempt":1}');
INSERT INTO "entry" VALUES(13,1,1794965606875,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(13,2,1794965607207,'claim','available','active','w-first',1,NULL);
INSERT INTO "entry" VALUES(13,3,1794965607225,'exhaust','active','review','w-first',1,'{"error":"ValueError: broken then","attempt":1}');
INSERT INTO "entry" VALUES(14,1,1794965606917,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(14,2,1794965607207,'claim','available','active','w-first',1,NULL);
INSERT INTO "entry" VALUES(14,3,1794965607225,'exhaust','active','review','w-first',1,'{"error":"ValueError: broken then","attempt":1}');
INSERT INTO "entry" VALUES(14,4,1794965610838,'discard','review','discarded','making',1,'{"reason":"too broken"}');
INSERT INTO "entry" VALUES(15,1,1794965606936,'submit',NULL,'pending','',0,NULL);
INSERT INTO "entry" VALUES(16,1,1794965607196,'submit',NULL,'available','01a1ec49-918c-70db-ad17-5be01fae9f65',0,NULL);
INSERT INTO "entry" VALUES(17,1,1794965607196,'submit',NULL,'available','01a1ec49-918c-70db-ad17-5be01fae9f65',0,NULL);
INSERT INTO "entry" VALUES(18,1,1794965607196,'submit',NULL,'available','01a1ec49-918c-70db-ad17-5be01fae9f65',0,NULL);
INSERT INTO "entry" VALUES(19,1,1794965610845,'submit',NULL,'available','01a1ec49-91c8-7676-86f7-97f27cb4b2e4',0,NULL);
CREATE TABLE family (                     -- how many children a group has, and how many of them have settled
  parent text not null,
  name text not null,
  total integer not null,
  arrived integer not null,
  primary key (parent, name)
) strict, without rowid;
INSERT INTO "family" VALUES('01a1ec49-918c-70db-ad17-5be01fae9f65','~map:upgrades.child#1',3,0);
INSERT INTO "family" VALUES('01a1ec49-91c8-7676-86f7-97f27cb4b2e4','undo',1,0);
CREATE TABLE job (
  n integer primary key,
  id text not null unique,
  type text not null,
  queue text not null,
  priority integer not null,
  state text not null check (
    state = 'available' or state = 'active' or state = 'completed' or state = 'scheduled' or state = 'pending'
    or state = 'retryable' or state = 'review' or state = 'discarded' or state = 'cancelled'),
  version integer not null,
  run_at integer,
  epoch integer not null,
  attempt integer not null,
  recoveries integer not null,
  worker text,
  claimed_at integer,
  expires_at integer,
  finished_at integer,
  prune_at integer,
  parent text,
  family text,                            -- the group of the parent's children that it belongs to
  arrived integer not null,
  waits text,
  inbox text,
  error text,
  result text,
  check ((state = 'active') = (worker is not null)),
  check ((state = 'completed' or state = 'discarded' or state = 'cancelled') = (finished_at is not null))
) strict;
INSERT INTO "job" VALUES(1,'01a1ec49-9145-703a-9eb7-45314ad80d9c','upgrades.plain','default',0,'completed',3,1794965606725,1,1,0,NULL,NULL,NULL,1794965607196,5250965607196,NULL,NULL,0,NULL,NULL,NULL,'2');
INSERT INTO "job" VALUES(2,'01a1ec49-9160-76ed-aebf-bef3ae87ffe5','upgrades.plain','later',0,'scheduled',1,1794969206752,0,1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(3,'01a1ec49-916b-72e2-a123-515b28162b38','upgrades.plain','later',3,'available',1,1794965606763,0,1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(4,'01a1ec49-917c-70b7-b0ef-9534cf04c86d','upgrades.plain','later',4,'available',1,1794965606780,0,1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(5,'01a1ec49-9184-7578-88ef-fe9fde3604ca','upgrades.stepped','default',0,'active',4,1794965606788,2,1,1,'w-second',1794965610745,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(6,'01a1ec49-918c-70db-ad17-5be01fae9f65','upgrades.parent','default',0,'pending',3,NULL,1,1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,'[{"kind":"children","name":"~map:upgrades.child#1"}]',NULL,NULL,NULL);
INSERT INTO "job" VALUES(7,'01a1ec49-9198-704f-81d3-79f01f8ef80d','upgrades.listener','default',0,'pending',4,NULL,1,1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,'[{"kind":"signal","name":"go"}]','[{"version":4,"name":"other","value":"7","by":"caller","at":1794965610821}]',NULL,NULL);
INSERT INTO "job" VALUES(8,'01a1ec49-919f-7688-96d3-56d2215eed2b','upgrades.sleeper','default',0,'scheduled',3,1794969207226,1,1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,'[{"kind":"time","until":1794969207226}]',NULL,NULL,NULL);
INSERT INTO "job" VALUES(9,'01a1ec49-91af-74ed-971b-14f92d79403a','upgrades.flaky','default',0,'retryable',3,1794965815724,1,2,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,'{"type":"ValueError","message":"not then","traceback":"Traceback (most recent call last):\n  File \"/tmp/tmpx29ozvf1/code/holdfast/worker/handler.py\", line 23, in guarded\n    return await work(attempt), None\n           ^^^^^^^^^^^^^^^^^^^\n  File \"/tmp/tmpx29ozvf1/code/holdfast/worker/handler.py\", line 35, in handled\n    value = await spec.function(*args, **kwargs)\n            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/tmp/tmpx29ozvf1/code/tests/engines/upgrades/jobs.py\", line 85, in flaky\n    raise ValueError(\"not then\")\nValueError: not then\n"}',NULL);
INSERT INTO "job" VALUES(10,'01a1ec49-91b8-7619-9c52-c175fb6f4f00','upgrades.buyer','default',0,'review',3,1794965606840,1,1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,'{"type":"EffectInDoubt","message":"pay#payment 1 was begun and not recorded: it may have happened; look, then holdfast resolve ID --step STEP with --result VALUE if it did, or --again if it did not"}',NULL);
INSERT INTO "job" VALUES(11,'01a1ec49-91c8-7676-86f7-97f27cb4b2e4','upgrades.painter','default',0,'cancelled',4,NULL,1,1,0,NULL,NULL,NULL,1794965610845,5250965610845,NULL,NULL,0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(12,'01a1ec49-91d4-701c-9aaa-c5fa785e9f2f','upgrades.broken','default',0,'review',3,1794965606868,1,2,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,'{"type":"ValueError","message":"broken then","traceback":"Traceback (most recent call last):\n  File \"/tmp/tmpx29ozvf1/code/holdfast/worker/handler.py\", line 23, in guarded\n    return await work(attempt), None\n           ^^^^^^^^^^^^^^^^^^^\n  File \"/tmp/tmpx29ozvf1/code/holdfast/worker/handler.py\", line 35, in handled\n    value = await spec.function(*args, **kwargs)\n            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/tmp/tmpx29ozvf1/code/tests/engines/upgrades/jobs.py\", line 91, in broken\n    raise ValueError(\"broken then\")\nValueError: broken then\n"}',NULL);
INSERT INTO "job" VALUES(13,'01a1ec49-91db-77ff-94c2-4bb42a7df47a','upgrades.broken','default',0,'review',3,1794965606875,1,2,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,'{"type":"ValueError","message":"broken then","traceback":"Traceback (most recent call last):\n  File \"/tmp/tmpx29ozvf1/code/holdfast/worker/handler.py\", line 23, in guarded\n    return await work(attempt), None\n           ^^^^^^^^^^^^^^^^^^^\n  File \"/tmp/tmpx29ozvf1/code/holdfast/worker/handler.py\", line 35, in handled\n    value = await spec.function(*args, **kwargs)\n            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/tmp/tmpx29ozvf1/code/tests/engines/upgrades/jobs.py\", line 91, in broken\n    raise ValueError(\"broken then\")\nValueError: broken then\n"}',NULL);
INSERT INTO "job" VALUES(14,'01a1ec49-9205-7635-820d-e9079ecdf853','upgrades.broken','default',0,'discarded',4,1794965606917,1,2,0,NULL,NULL,NULL,1794965610838,5250965610838,NULL,NULL,0,NULL,NULL,'{"type":"ValueError","message":"broken then","traceback":"Traceback (most recent call last):\n  File \"/tmp/tmpx29ozvf1/code/holdfast/worker/handler.py\", line 23, in guarded\n    return await work(attempt), None\n           ^^^^^^^^^^^^^^^^^^^\n  File \"/tmp/tmpx29ozvf1/code/holdfast/worker/handler.py\", line 35, in handled\n    value = await spec.function(*args, **kwargs)\n            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/tmp/tmpx29ozvf1/code/tests/engines/upgrades/jobs.py\", line 91, in broken\n    raise ValueError(\"broken then\")\nValueError: broken then\n"}',NULL);
INSERT INTO "job" VALUES(15,'01a1ec49-9218-705a-a2ee-b9a4b370335f','upgrades.plain','later',0,'pending',1,NULL,0,1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,'[{"kind":"activation"}]',NULL,NULL,NULL);
INSERT INTO "job" VALUES(16,'01a1ec49-918c-73e2-9f31-457b6499cd8d','upgrades.child','later',0,'available',1,1794965607196,0,1,0,NULL,NULL,NULL,NULL,NULL,'01a1ec49-918c-70db-ad17-5be01fae9f65','~map:upgrades.child#1',0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(17,'01a1ec49-918c-7521-b6aa-040234334fa5','upgrades.child','later',0,'available',1,1794965607196,0,1,0,NULL,NULL,NULL,NULL,NULL,'01a1ec49-918c-70db-ad17-5be01fae9f65','~map:upgrades.child#1',0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(18,'01a1ec49-918c-79f1-9e96-32d9469526d0','upgrades.child','later',0,'available',1,1794965607196,0,1,0,NULL,NULL,NULL,NULL,NULL,'01a1ec49-918c-70db-ad17-5be01fae9f65','~map:upgrades.child#1',0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(19,'01a1ec49-91c8-786f-8bc0-5d8982330371','holdfast.undo','default',0,'available',1,1794965610845,0,1,0,NULL,NULL,NULL,NULL,NULL,'01a1ec49-91c8-7676-86f7-97f27cb4b2e4','undo',0,NULL,NULL,NULL,NULL);
CREATE TABLE key (
  type text not null,
  key text not null,
  job text not null,
  digest text not null,
  until integer,
  primary key (type, key)
) strict, without rowid;
INSERT INTO "key" VALUES('upgrades.plain','k-1','01a1ec49-9145-703a-9eb7-45314ad80d9c','89366b6ad129e12bc7bf4978b5607c30',NULL);
INSERT INTO "key" VALUES('upgrades.plain','k-2','01a1ec49-917c-70b7-b0ef-9534cf04c86d','b9b721b40392eec945cb5938ad5edece',NULL);
CREATE TABLE record (                     -- a removed record keeps its row, so that its version never comes back
  name text primary key,
  value text,
  version integer not null,
  at integer not null
) strict, without rowid;
INSERT INTO "record" VALUES('leader','{"worker":"w-second"}',2,1794965610751);
INSERT INTO "record" VALUES('note/gone',NULL,2,1794965610808);
INSERT INTO "record" VALUES('note/kept','kept',1,1794965610789);
INSERT INTO "record" VALUES('pause/default','{"by":"making","reason":""}',1,1794965610787);
CREATE TABLE step (
  n integer primary key,                  -- the order in which steps were first written
  job integer not null,
  path text not null,
  name text not null,
  state text not null check (state = 'done' or state = 'started' or state = 'failed'),
  epoch integer not null,
  started_at integer not null,
  finished_at integer,
  error text,
  result text,
  unique (job, path)
) strict;
INSERT INTO "step" VALUES(1,5,'draw#db377ebea649527e','draw','done',1,1794965607197,1794965607197,NULL,'"0 then"');
INSERT INTO "step" VALUES(2,7,'draw#db377ebea649527e','draw','done',1,1794965607198,1794965607198,NULL,'"0 then"');
INSERT INTO "step" VALUES(3,8,'draw#db377ebea649527e','draw','done',1,1794965607198,1794965607198,NULL,'"0 then"');
INSERT INTO "step" VALUES(4,10,'draw#db377ebea649527e','draw','done',1,1794965607236,1794965607236,NULL,'"0 then"');
INSERT INTO "step" VALUES(5,11,'~undo/paint#e7d1541d707808ba','~undo','started',1,1794965607236,NULL,NULL,'{"place":"tests.engines.upgrades.jobs","step":"paint"}');
INSERT INTO "step" VALUES(6,7,'~wait/go','~wait','started',1,1794965607227,NULL,NULL,'{"name":"go","schema":{"type":"integer"},"until":null}');
INSERT INTO "step" VALUES(7,8,'~wait/sleep:1 h','~wait','started',1,1794965607227,NULL,NULL,'{"until":1794969207226}');
INSERT INTO "step" VALUES(8,10,'pay#payment 1','pay','started',1,1794965607295,NULL,NULL,'{"effect":"once"}');
INSERT INTO "step" VALUES(9,11,'paint#e7d1541d707808ba','paint','done',1,1794965607236,1794965607295,NULL,'"1 then"');
INSERT INTO "step" VALUES(10,11,'~wait/never','~wait','started',1,1794965607310,NULL,NULL,'{"name":"never","schema":{},"until":null}');
CREATE TABLE tally (                      -- how many jobs a queue has in a state: kept, never counted
  queue text not null,
  state text not null,
  jobs integer not null,
  primary key (queue, state)
) strict, without rowid;
INSERT INTO "tally" VALUES('default','active',1);
INSERT INTO "tally" VALUES('default','available',1);
INSERT INTO "tally" VALUES('default','cancelled',1);
INSERT INTO "tally" VALUES('default','completed',1);
INSERT INTO "tally" VALUES('default','discarded',1);
INSERT INTO "tally" VALUES('default','pending',2);
INSERT INTO "tally" VALUES('default','retryable',1);
INSERT INTO "tally" VALUES('default','review',3);
INSERT INTO "tally" VALUES('default','scheduled',1);
INSERT INTO "tally" VALUES('later','available',5);
INSERT INTO "tally" VALUES('later','pending',1);
INSERT INTO "tally" VALUES('later','scheduled',1);
CREATE INDEX job_ready on job (queue, priority desc, run_at) where state = 'available';
CREATE INDEX job_due on job (queue, run_at)
  where run_at is not null and finished_at is null and worker is null and state <> 'available' and state <> 'review';
CREATE INDEX job_backing_off on job (queue, run_at) where state = 'available' and recoveries > 1;
CREATE INDEX job_held on job (worker) where state = 'active';
CREATE INDEX job_state on job (state, id);
CREATE INDEX job_parent on job (parent, id) where parent is not null;
CREATE INDEX job_expiring on job (expires_at) where expires_at is not null and finished_at is null;
CREATE INDEX job_old on job (prune_at) where prune_at is not null;
CREATE INDEX key_over on key (until) where until is not null;
CREATE VIEW whole as
  select job.n, id, type, queue, args, digest, priority, key, key_until, parent, family, created_at, expires_at,
    options, state, version, run_at, epoch, attempt, recoveries, worker, claimed_at, waits, result, error,
    finished_at, prune_at, inbox, arrived
  from job join body on body.n = job.n;
CREATE VIEW jobs as
  select id, type, queue, state, attempt, datetime(run_at / 1000, 'unixepoch') as run_at, worker, args, error, result
  from job join body using (n);
CREATE VIEW history as
  select job.id, entry.version, datetime(entry.at / 1000, 'unixepoch') as at, event, before, after, actor, note
  from entry join job on job.n = entry.job;
COMMIT;
pragma application_id = 1215261796;
pragma user_version = 1;

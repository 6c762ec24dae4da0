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
INSERT INTO "body" VALUES(1,'[1]','89366b6ad129e12bc7bf4978b5607c30','k-1',NULL,1794975110648,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(2,'[2]','f9ece9be35f186bab18142baa5317d53',NULL,NULL,1794975110651,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(3,'[3]','e1f2255035568a21f1667b4a391e75f5',NULL,NULL,1794975110655,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(4,'[4]','b9b721b40392eec945cb5938ad5edece','k-2',NULL,1794975110659,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(5,'[3]','9b18605edf39bd02f7c4f4cfcb6305e0',NULL,NULL,1794975110668,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(6,'[3]','bd9ed0b15a32af02bb5893c0c2d9cc45',NULL,NULL,1794975110671,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(7,'[]','bcff928ac5e8272134bbb6034ac58fde',NULL,NULL,1794975110675,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(8,'[]','f1984e18f43ed32e32f8caea4c500102',NULL,NULL,1794975110684,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(9,'[]','4e559ab8e9a655e3c643bf69c09ed0c5',NULL,NULL,1794975110687,'{"retry":{"retries":5,"initial_ms":3600000},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(10,'[]','ed6267b63ec5cb914dd721f0961fd969',NULL,NULL,1794975110691,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(11,'[]','e03df04acbc27b762e7ecbc217c1ffda',NULL,NULL,1794975110695,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(12,'[]','9c49c3a1f98249a7dec4f5c5015820ab',NULL,NULL,1794975110697,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(13,'[]','f33752ed2884573bdc2c7ee7b8ac555c',NULL,NULL,1794975110699,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(14,'[]','ac808496f1643047e382e16f6079b723',NULL,NULL,1794975110703,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(15,'[]','a8b2c93f78f41ac4a8212b7096a34e8c',NULL,NULL,1794975110707,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(16,'[[1,2]]','90f962fb57b3eaf050dce389082e06fc',NULL,NULL,1794975110712,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(17,'["YWI="]','5a850bf7c7a0a42ea3f007f5c14a93bf',NULL,NULL,1794975110716,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(18,'[{"1":2}]','3dbb6e92cb6b3b1adf32bd65bc15373a',NULL,NULL,1794975110719,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(19,'["1.5"]','33fc90c14046a5ecc8a11d02ad73b4fa',NULL,NULL,1794975110724,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(20,'["2026-03-01T00:00:00Z"]','5e3cb1552cb9aa3961e56bd7e8c90ee2',NULL,NULL,1794975110728,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(21,'[{"width":1}]','61ead992a1b9a905e3ca70d13b640089',NULL,NULL,1794975110733,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(22,'[1]','51879a9dc4d82f48b59a8e4204f8a343',NULL,NULL,1794975110735,'{"retry":{"retries":0},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(23,'[2]','c3c33a0382a1bac1d503044bc29ac910',NULL,NULL,1794975110739,'{"retry":{"retries":0},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(24,'[3]','2b98d7af48e2f289be593dae68054971',NULL,NULL,1794975110743,'{"retry":{"retries":0},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(25,'[5]','8f78020ee7e398c63e4ecfb9adadaaa0',NULL,NULL,1794975110750,'{}');
INSERT INTO "body" VALUES(26,'[0]','9d8c125de23d1275e5043dad071be930',NULL,NULL,1794975110761,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(27,'[1]','9d620bee4532a2234f858b1c6ef183b7',NULL,NULL,1794975110761,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(28,'[2]','d26dbc04f13b5832c402c27284261f57',NULL,NULL,1794975110761,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(29,'[[1,2]]','d84dadd6306858b45bf9286e2c7e9733',NULL,NULL,1794975110771,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(30,'["YWI="]','1e5ce933ad8cf494b1572f7896a58030',NULL,NULL,1794975110821,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(31,'[{"1":2}]','324f51bb34eb16a62b73edaed70548a3',NULL,NULL,1794975110826,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(32,'["1.5"]','5f2b45cc59ca2878c8d34c74dc8efa17',NULL,NULL,1794975110828,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(33,'["2026-03-01T00:00:00Z"]','5bf602fdbd194baa53647b9afeabe522',NULL,NULL,1794975110829,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(34,'[{"width":1}]','fe7d485461d0f0b2bde9b93ec1c3864e',NULL,NULL,1794975110830,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(35,'[[1,2]]','d84dadd6306858b45bf9286e2c7e9733',NULL,NULL,1794975110831,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(36,'["YWI="]','1e5ce933ad8cf494b1572f7896a58030',NULL,NULL,1794975110831,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(37,'[{"1":2}]','324f51bb34eb16a62b73edaed70548a3',NULL,NULL,1794975110831,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(38,'["1.5"]','5f2b45cc59ca2878c8d34c74dc8efa17',NULL,NULL,1794975110831,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(39,'["2026-03-01T00:00:00Z"]','5bf602fdbd194baa53647b9afeabe522',NULL,NULL,1794975110831,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(40,'[{"width":1}]','fe7d485461d0f0b2bde9b93ec1c3864e',NULL,NULL,1794975110831,'{"retry":{},"keep_ms":3456000000000}');
INSERT INTO "body" VALUES(41,'["01a1ecda-9627-7468-a305-65733a92af25"]','',NULL,NULL,1794975112795,'{"keep_ms":3456000000000}');
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
INSERT INTO "entry" VALUES(1,1,1794975110648,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(1,2,1794975110759,'claim','available','active','w-first',1,NULL);
INSERT INTO "entry" VALUES(1,3,1794975110761,'complete','active','completed','w-first',1,NULL);
INSERT INTO "entry" VALUES(2,1,1794975110651,'submit',NULL,'scheduled','',0,NULL);
INSERT INTO "entry" VALUES(3,1,1794975110655,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(4,1,1794975110659,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(5,1,1794975110668,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(5,2,1794975110759,'claim','available','active','w-first',1,NULL);
INSERT INTO "entry" VALUES(5,3,1794975112732,'lapse','active','available','w-second',1,'{"lost":"w-first","why":"process 1567 on vm ended without a word; last heard of 757 ms ago","survived":"1 recorded steps","stage":"draw"}');
INSERT INTO "entry" VALUES(5,4,1794975112744,'claim','available','active','w-second',2,NULL);
INSERT INTO "entry" VALUES(6,1,1794975110671,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(6,2,1794975110759,'claim','available','active','w-first',1,NULL);
INSERT INTO "entry" VALUES(6,3,1794975110820,'suspend','active','pending','w-first',1,'{"waits":["children ~map:upgrades.child#1"]}');
INSERT INTO "entry" VALUES(7,1,1794975110675,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(7,2,1794975110759,'claim','available','active','w-first',1,NULL);
INSERT INTO "entry" VALUES(7,3,1794975110773,'suspend','active','pending','w-first',1,'{"waits":["signal go"]}');
INSERT INTO "entry" VALUES(7,4,1794975112793,'signal','pending','pending','caller',1,'{"signal":"other"}');
INSERT INTO "entry" VALUES(8,1,1794975110684,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(8,2,1794975110759,'claim','available','active','w-first',1,NULL);
INSERT INTO "entry" VALUES(8,3,1794975110773,'rest','active','scheduled','w-first',1,'{"waits":["time, for 1 h at most"]}');
INSERT INTO "entry" VALUES(9,1,1794975110687,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(9,2,1794975110759,'claim','available','active','w-first',1,NULL);
INSERT INTO "entry" VALUES(9,3,1794975110761,'fail','active','retryable','w-first',1,'{"error":"ValueError: not then","attempt":1,"next_try":"in 5 min"}');
INSERT INTO "entry" VALUES(10,1,1794975110691,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(10,2,1794975110762,'claim','available','active','w-first',1,NULL);
INSERT INTO "entry" VALUES(10,3,1794975112732,'abandon','active','review','w-second',1,'{"lost":"w-first","why":"process 1567 on vm ended without a word; last heard of 757 ms ago","survived":"1 recorded steps","stage":"pay","in_doubt":["pay#payment 1"]}');
INSERT INTO "entry" VALUES(11,1,1794975110695,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(11,2,1794975110762,'claim','available','active','w-first',1,NULL);
INSERT INTO "entry" VALUES(11,3,1794975110826,'suspend','active','pending','w-first',1,'{"waits":["signal never"]}');
INSERT INTO "entry" VALUES(11,4,1794975112795,'cancel','pending','cancelled','making',1,NULL);
INSERT INTO "entry" VALUES(12,1,1794975110697,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(12,2,1794975110762,'claim','available','active','w-first',1,NULL);
INSERT INTO "entry" VALUES(12,3,1794975110853,'suspend','active','pending','w-first',1,'{"waits":["signal go"]}');
INSERT INTO "entry" VALUES(13,1,1794975110699,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(13,2,1794975110762,'claim','available','active','w-first',1,NULL);
INSERT INTO "entry" VALUES(13,3,1794975110860,'suspend','active','pending','w-first',1,'{"waits":["signal go"]}');
INSERT INTO "entry" VALUES(14,1,1794975110703,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(14,2,1794975110762,'claim','available','active','w-first',1,NULL);
INSERT INTO "entry" VALUES(14,3,1794975112732,'lapse','active','available','w-second',1,'{"lost":"w-first","why":"process 1567 on vm ended without a word; last heard of 757 ms ago","survived":"7 recorded steps","stage":"took_apart"}');
INSERT INTO "entry" VALUES(14,4,1794975112760,'claim','available','active','w-second',2,NULL);
INSERT INTO "entry" VALUES(14,5,1794975112767,'suspend','active','pending','w-second',2,'{"waits":["signal go"]}');
INSERT INTO "entry" VALUES(15,1,1794975110707,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(15,2,1794975110762,'claim','available','active','w-first',1,NULL);
INSERT INTO "entry" VALUES(15,3,1794975111836,'suspend','active','pending','w-first',1,'{"waits":["children 01a1ecda-9633-76e3-bb51-379af54a0d31","children 01a1ecda-9633-7c4e-8ad0-52caa8d065af","children 01a1ecda-9633-7f75-8751-84bac94b57bd","children 01a1ecda-9633-7f93-a828-1fada38917f2","children 01a1ecda-9633-7727-9d86-b58745d451dc","children 01a1ecda-9633-71b1-96f7-80aa02ac3c2a","children ~map:upgrades.given#1"]}');
INSERT INTO "entry" VALUES(16,1,1794975110712,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(17,1,1794975110716,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(18,1,1794975110719,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(19,1,1794975110724,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(20,1,1794975110728,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(21,1,1794975110733,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(22,1,1794975110735,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(22,2,1794975110773,'claim','available','active','w-first',1,NULL);
INSERT INTO "entry" VALUES(22,3,1794975110822,'exhaust','active','review','w-first',1,'{"error":"ValueError: broken then","attempt":1}');
INSERT INTO "entry" VALUES(23,1,1794975110739,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(23,2,1794975110773,'claim','available','active','w-first',1,NULL);
INSERT INTO "entry" VALUES(23,3,1794975110822,'exhaust','active','review','w-first',1,'{"error":"ValueError: broken then","attempt":1}');
INSERT INTO "entry" VALUES(24,1,1794975110743,'submit',NULL,'available','',0,NULL);
INSERT INTO "entry" VALUES(24,2,1794975110773,'claim','available','active','w-first',1,NULL);
INSERT INTO "entry" VALUES(24,3,1794975110822,'exhaust','active','review','w-first',1,'{"error":"ValueError: broken then","attempt":1}');
INSERT INTO "entry" VALUES(24,4,1794975112794,'discard','review','discarded','making',1,'{"reason":"too broken"}');
INSERT INTO "entry" VALUES(25,1,1794975110750,'submit',NULL,'pending','',0,NULL);
INSERT INTO "entry" VALUES(26,1,1794975110761,'submit',NULL,'available','01a1ecda-960f-75a3-8506-4f29800a3524',0,NULL);
INSERT INTO "entry" VALUES(27,1,1794975110761,'submit',NULL,'available','01a1ecda-960f-75a3-8506-4f29800a3524',0,NULL);
INSERT INTO "entry" VALUES(28,1,1794975110761,'submit',NULL,'available','01a1ecda-960f-75a3-8506-4f29800a3524',0,NULL);
INSERT INTO "entry" VALUES(29,1,1794975110771,'submit',NULL,'available','01a1ecda-9633-77de-be41-00f1f5898c1e',0,NULL);
INSERT INTO "entry" VALUES(30,1,1794975110821,'submit',NULL,'available','01a1ecda-9633-77de-be41-00f1f5898c1e',0,NULL);
INSERT INTO "entry" VALUES(31,1,1794975110826,'submit',NULL,'available','01a1ecda-9633-77de-be41-00f1f5898c1e',0,NULL);
INSERT INTO "entry" VALUES(32,1,1794975110828,'submit',NULL,'available','01a1ecda-9633-77de-be41-00f1f5898c1e',0,NULL);
INSERT INTO "entry" VALUES(33,1,1794975110829,'submit',NULL,'available','01a1ecda-9633-77de-be41-00f1f5898c1e',0,NULL);
INSERT INTO "entry" VALUES(34,1,1794975110830,'submit',NULL,'available','01a1ecda-9633-77de-be41-00f1f5898c1e',0,NULL);
INSERT INTO "entry" VALUES(35,1,1794975110831,'submit',NULL,'available','01a1ecda-9633-77de-be41-00f1f5898c1e',0,NULL);
INSERT INTO "entry" VALUES(36,1,1794975110831,'submit',NULL,'available','01a1ecda-9633-77de-be41-00f1f5898c1e',0,NULL);
INSERT INTO "entry" VALUES(37,1,1794975110831,'submit',NULL,'available','01a1ecda-9633-77de-be41-00f1f5898c1e',0,NULL);
INSERT INTO "entry" VALUES(38,1,1794975110831,'submit',NULL,'available','01a1ecda-9633-77de-be41-00f1f5898c1e',0,NULL);
INSERT INTO "entry" VALUES(39,1,1794975110831,'submit',NULL,'available','01a1ecda-9633-77de-be41-00f1f5898c1e',0,NULL);
INSERT INTO "entry" VALUES(40,1,1794975110831,'submit',NULL,'available','01a1ecda-9633-77de-be41-00f1f5898c1e',0,NULL);
INSERT INTO "entry" VALUES(41,1,1794975112795,'submit',NULL,'available','01a1ecda-9627-7468-a305-65733a92af25',0,NULL);
CREATE TABLE family (                     -- how many children a group has, and how many of them have settled
  parent text not null,
  name text not null,
  total integer not null,
  arrived integer not null,
  primary key (parent, name)
) strict, without rowid;
INSERT INTO "family" VALUES('01a1ecda-960f-75a3-8506-4f29800a3524','~map:upgrades.child#1',3,0);
INSERT INTO "family" VALUES('01a1ecda-9627-7468-a305-65733a92af25','undo',1,0);
INSERT INTO "family" VALUES('01a1ecda-9633-77de-be41-00f1f5898c1e','01a1ecda-9633-71b1-96f7-80aa02ac3c2a',1,0);
INSERT INTO "family" VALUES('01a1ecda-9633-77de-be41-00f1f5898c1e','01a1ecda-9633-76e3-bb51-379af54a0d31',1,0);
INSERT INTO "family" VALUES('01a1ecda-9633-77de-be41-00f1f5898c1e','01a1ecda-9633-7727-9d86-b58745d451dc',1,0);
INSERT INTO "family" VALUES('01a1ecda-9633-77de-be41-00f1f5898c1e','01a1ecda-9633-7c4e-8ad0-52caa8d065af',1,0);
INSERT INTO "family" VALUES('01a1ecda-9633-77de-be41-00f1f5898c1e','01a1ecda-9633-7f75-8751-84bac94b57bd',1,0);
INSERT INTO "family" VALUES('01a1ecda-9633-77de-be41-00f1f5898c1e','01a1ecda-9633-7f93-a828-1fada38917f2',1,0);
INSERT INTO "family" VALUES('01a1ecda-9633-77de-be41-00f1f5898c1e','~map:upgrades.given#1',6,0);
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
INSERT INTO "job" VALUES(1,'01a1ecda-95f8-77ed-9129-3ae63b77ac8f','upgrades.plain','default',0,'completed',3,1794975110648,1,1,0,NULL,NULL,NULL,1794975110761,5250975110761,NULL,NULL,0,NULL,NULL,NULL,'2');
INSERT INTO "job" VALUES(2,'01a1ecda-95fb-72d5-9f91-2bd629198624','upgrades.plain','later',0,'scheduled',1,1794978710651,0,1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(3,'01a1ecda-95ff-7394-af88-cbb8ffe929e4','upgrades.plain','later',3,'available',1,1794975110655,0,1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(4,'01a1ecda-9603-7757-81dd-26aa34aef07b','upgrades.plain','later',4,'available',1,1794975110659,0,1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(5,'01a1ecda-960c-769b-ab1f-b2892eed3026','upgrades.stepped','default',0,'active',4,1794975110668,2,1,1,'w-second',1794975112744,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(6,'01a1ecda-960f-75a3-8506-4f29800a3524','upgrades.parent','default',0,'pending',3,NULL,1,1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,'[{"kind":"children","name":"~map:upgrades.child#1"}]',NULL,NULL,NULL);
INSERT INTO "job" VALUES(7,'01a1ecda-9613-7061-9047-04f83929bf65','upgrades.listener','default',0,'pending',4,NULL,1,1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,'[{"kind":"signal","name":"go"}]','[{"version":4,"name":"other","value":"7","by":"caller","at":1794975112793}]',NULL,NULL);
INSERT INTO "job" VALUES(8,'01a1ecda-961c-735b-a088-a341197a89d7','upgrades.sleeper','default',0,'scheduled',3,1794978710769,1,1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,'[{"kind":"time","until":1794978710769}]',NULL,NULL,NULL);
INSERT INTO "job" VALUES(9,'01a1ecda-961f-729a-922d-dbd3a6369702','upgrades.flaky','default',0,'retryable',3,1794975410761,1,2,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,'{"type":"ValueError","message":"not then","traceback":"Traceback (most recent call last):\n  File \"/tmp/tmp3jqp7x82/code/holdfast/worker/handler.py\", line 23, in guarded\n    return await work(attempt), None\n           ^^^^^^^^^^^^^^^^^^^\n  File \"/tmp/tmp3jqp7x82/code/holdfast/worker/handler.py\", line 35, in handled\n    value = await spec.function(*args, **kwargs)\n            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/tmp/tmp3jqp7x82/code/tests/engines/upgrades/jobs.py\", line 119, in flaky\n    raise ValueError(\"not then\")\nValueError: not then\n"}',NULL);
INSERT INTO "job" VALUES(10,'01a1ecda-9623-7466-9554-6aef6a064701','upgrades.buyer','default',0,'review',3,1794975110691,1,1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,'{"type":"EffectInDoubt","message":"pay#payment 1 was begun and not recorded: it may have happened; look, then holdfast resolve ID --step STEP with --result VALUE if it did, or --again if it did not"}',NULL);
INSERT INTO "job" VALUES(11,'01a1ecda-9627-7468-a305-65733a92af25','upgrades.painter','default',0,'cancelled',4,NULL,1,1,0,NULL,NULL,NULL,1794975112795,5250975112795,NULL,NULL,0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(12,'01a1ecda-9629-771c-ae4d-89ead2e873f8','upgrades.taker','default',0,'pending',3,NULL,1,1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,'[{"kind":"signal","name":"go"}]',NULL,NULL,NULL);
INSERT INTO "job" VALUES(13,'01a1ecda-962b-7550-96ee-f7246e8a3720','upgrades.plain_taker','default',0,'pending',3,NULL,1,1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,'[{"kind":"signal","name":"go"}]',NULL,NULL,NULL);
INSERT INTO "job" VALUES(14,'01a1ecda-962f-7568-9159-d7b6210619b6','upgrades.apart','default',0,'pending',5,NULL,2,1,1,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,'[{"kind":"signal","name":"go"}]',NULL,NULL,NULL);
INSERT INTO "job" VALUES(15,'01a1ecda-9633-77de-be41-00f1f5898c1e','upgrades.giver','default',0,'pending',3,NULL,1,1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,'[{"kind":"children","name":"01a1ecda-9633-76e3-bb51-379af54a0d31"},{"kind":"children","name":"01a1ecda-9633-7c4e-8ad0-52caa8d065af"},{"kind":"children","name":"01a1ecda-9633-7f75-8751-84bac94b57bd"},{"kind":"children","name":"01a1ecda-9633-7f93-a828-1fada38917f2"},{"kind":"children","name":"01a1ecda-9633-7727-9d86-b58745d451dc"},{"kind":"children","name":"01a1ecda-9633-71b1-96f7-80aa02ac3c2a"},{"kind":"children","name":"~map:upgrades.given#1"}]',NULL,NULL,NULL);
INSERT INTO "job" VALUES(16,'01a1ecda-9638-7675-91f3-36302c6b08dc','upgrades.shown','later',0,'available',1,1794975110712,0,1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(17,'01a1ecda-963c-769d-acda-328190591d05','upgrades.shown','later',0,'available',1,1794975110716,0,1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(18,'01a1ecda-963f-7533-b32f-a3204d2b99c4','upgrades.shown','later',0,'available',1,1794975110719,0,1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(19,'01a1ecda-9644-7751-8202-230835ab0077','upgrades.shown','later',0,'available',1,1794975110724,0,1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(20,'01a1ecda-9648-761f-a4dd-c4910601487c','upgrades.shown','later',0,'available',1,1794975110728,0,1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(21,'01a1ecda-964d-7055-90e9-7d7bf8b5a441','upgrades.shown','later',0,'available',1,1794975110733,0,1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(22,'01a1ecda-964f-7534-ae29-cb076efae04c','upgrades.broken','default',0,'review',3,1794975110735,1,2,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,'{"type":"ValueError","message":"broken then","traceback":"Traceback (most recent call last):\n  File \"/tmp/tmp3jqp7x82/code/holdfast/worker/handler.py\", line 23, in guarded\n    return await work(attempt), None\n           ^^^^^^^^^^^^^^^^^^^\n  File \"/tmp/tmp3jqp7x82/code/holdfast/worker/handler.py\", line 35, in handled\n    value = await spec.function(*args, **kwargs)\n            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/tmp/tmp3jqp7x82/code/tests/engines/upgrades/jobs.py\", line 125, in broken\n    raise ValueError(\"broken then\")\nValueError: broken then\n"}',NULL);
INSERT INTO "job" VALUES(23,'01a1ecda-9653-7302-afe6-626a7b787728','upgrades.broken','default',0,'review',3,1794975110739,1,2,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,'{"type":"ValueError","message":"broken then","traceback":"Traceback (most recent call last):\n  File \"/tmp/tmp3jqp7x82/code/holdfast/worker/handler.py\", line 23, in guarded\n    return await work(attempt), None\n           ^^^^^^^^^^^^^^^^^^^\n  File \"/tmp/tmp3jqp7x82/code/holdfast/worker/handler.py\", line 35, in handled\n    value = await spec.function(*args, **kwargs)\n            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/tmp/tmp3jqp7x82/code/tests/engines/upgrades/jobs.py\", line 125, in broken\n    raise ValueError(\"broken then\")\nValueError: broken then\n"}',NULL);
INSERT INTO "job" VALUES(24,'01a1ecda-9657-74e4-8242-33c486e22823','upgrades.broken','default',0,'discarded',4,1794975110743,1,2,0,NULL,NULL,NULL,1794975112794,5250975112794,NULL,NULL,0,NULL,NULL,'{"type":"ValueError","message":"broken then","traceback":"Traceback (most recent call last):\n  File \"/tmp/tmp3jqp7x82/code/holdfast/worker/handler.py\", line 23, in guarded\n    return await work(attempt), None\n           ^^^^^^^^^^^^^^^^^^^\n  File \"/tmp/tmp3jqp7x82/code/holdfast/worker/handler.py\", line 35, in handled\n    value = await spec.function(*args, **kwargs)\n            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/tmp/tmp3jqp7x82/code/tests/engines/upgrades/jobs.py\", line 125, in broken\n    raise ValueError(\"broken then\")\nValueError: broken then\n"}',NULL);
INSERT INTO "job" VALUES(25,'01a1ecda-965e-70a4-83e2-f2647e04a52c','upgrades.plain','later',0,'pending',1,NULL,0,1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,'[{"kind":"activation"}]',NULL,NULL,NULL);
INSERT INTO "job" VALUES(26,'01a1ecda-960f-7e4d-981b-cc5269cd54ad','upgrades.child','later',0,'available',1,1794975110761,0,1,0,NULL,NULL,NULL,NULL,NULL,'01a1ecda-960f-75a3-8506-4f29800a3524','~map:upgrades.child#1',0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(27,'01a1ecda-960f-7736-b5d9-9616db19d085','upgrades.child','later',0,'available',1,1794975110761,0,1,0,NULL,NULL,NULL,NULL,NULL,'01a1ecda-960f-75a3-8506-4f29800a3524','~map:upgrades.child#1',0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(28,'01a1ecda-960f-77da-9719-18837980168e','upgrades.child','later',0,'available',1,1794975110761,0,1,0,NULL,NULL,NULL,NULL,NULL,'01a1ecda-960f-75a3-8506-4f29800a3524','~map:upgrades.child#1',0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(29,'01a1ecda-9633-76e3-bb51-379af54a0d31','upgrades.given','later',0,'available',1,1794975110771,0,1,0,NULL,NULL,NULL,NULL,NULL,'01a1ecda-9633-77de-be41-00f1f5898c1e','01a1ecda-9633-76e3-bb51-379af54a0d31',0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(30,'01a1ecda-9633-7c4e-8ad0-52caa8d065af','upgrades.given','later',0,'available',1,1794975110821,0,1,0,NULL,NULL,NULL,NULL,NULL,'01a1ecda-9633-77de-be41-00f1f5898c1e','01a1ecda-9633-7c4e-8ad0-52caa8d065af',0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(31,'01a1ecda-9633-7f75-8751-84bac94b57bd','upgrades.given','later',0,'available',1,1794975110826,0,1,0,NULL,NULL,NULL,NULL,NULL,'01a1ecda-9633-77de-be41-00f1f5898c1e','01a1ecda-9633-7f75-8751-84bac94b57bd',0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(32,'01a1ecda-9633-7f93-a828-1fada38917f2','upgrades.given','later',0,'available',1,1794975110828,0,1,0,NULL,NULL,NULL,NULL,NULL,'01a1ecda-9633-77de-be41-00f1f5898c1e','01a1ecda-9633-7f93-a828-1fada38917f2',0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(33,'01a1ecda-9633-7727-9d86-b58745d451dc','upgrades.given','later',0,'available',1,1794975110829,0,1,0,NULL,NULL,NULL,NULL,NULL,'01a1ecda-9633-77de-be41-00f1f5898c1e','01a1ecda-9633-7727-9d86-b58745d451dc',0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(34,'01a1ecda-9633-71b1-96f7-80aa02ac3c2a','upgrades.given','later',0,'available',1,1794975110830,0,1,0,NULL,NULL,NULL,NULL,NULL,'01a1ecda-9633-77de-be41-00f1f5898c1e','01a1ecda-9633-71b1-96f7-80aa02ac3c2a',0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(35,'01a1ecda-9633-7fe0-86b5-baacf7bbb18c','upgrades.given','later',0,'available',1,1794975110831,0,1,0,NULL,NULL,NULL,NULL,NULL,'01a1ecda-9633-77de-be41-00f1f5898c1e','~map:upgrades.given#1',0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(36,'01a1ecda-9633-79b3-8344-6fded80721e5','upgrades.given','later',0,'available',1,1794975110831,0,1,0,NULL,NULL,NULL,NULL,NULL,'01a1ecda-9633-77de-be41-00f1f5898c1e','~map:upgrades.given#1',0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(37,'01a1ecda-9633-79eb-a342-7221a5b91654','upgrades.given','later',0,'available',1,1794975110831,0,1,0,NULL,NULL,NULL,NULL,NULL,'01a1ecda-9633-77de-be41-00f1f5898c1e','~map:upgrades.given#1',0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(38,'01a1ecda-9633-73ea-9cac-2c83c3e19cab','upgrades.given','later',0,'available',1,1794975110831,0,1,0,NULL,NULL,NULL,NULL,NULL,'01a1ecda-9633-77de-be41-00f1f5898c1e','~map:upgrades.given#1',0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(39,'01a1ecda-9633-71fd-95d8-6d54f50e617b','upgrades.given','later',0,'available',1,1794975110831,0,1,0,NULL,NULL,NULL,NULL,NULL,'01a1ecda-9633-77de-be41-00f1f5898c1e','~map:upgrades.given#1',0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(40,'01a1ecda-9633-7cc0-8e95-fa2630366682','upgrades.given','later',0,'available',1,1794975110831,0,1,0,NULL,NULL,NULL,NULL,NULL,'01a1ecda-9633-77de-be41-00f1f5898c1e','~map:upgrades.given#1',0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(41,'01a1ecda-9627-7128-a8a7-2ac23fd9090c','holdfast.undo','default',0,'available',1,1794975112795,0,1,0,NULL,NULL,NULL,NULL,NULL,'01a1ecda-9627-7468-a305-65733a92af25','undo',0,NULL,NULL,NULL,NULL);
CREATE TABLE key (
  type text not null,
  key text not null,
  job text not null,
  digest text not null,
  until integer,
  primary key (type, key)
) strict, without rowid;
INSERT INTO "key" VALUES('upgrades.plain','k-1','01a1ecda-95f8-77ed-9129-3ae63b77ac8f','89366b6ad129e12bc7bf4978b5607c30',NULL);
INSERT INTO "key" VALUES('upgrades.plain','k-2','01a1ecda-9603-7757-81dd-26aa34aef07b','b9b721b40392eec945cb5938ad5edece',NULL);
CREATE TABLE record (                     -- a removed record keeps its row, so that its version never comes back
  name text primary key,
  value text,
  version integer not null,
  at integer not null
) strict, without rowid;
INSERT INTO "record" VALUES('leader','{"worker":"w-second"}',2,1794975112767);
INSERT INTO "record" VALUES('note/gone',NULL,2,1794975112788);
INSERT INTO "record" VALUES('note/kept','kept',1,1794975112782);
INSERT INTO "record" VALUES('pause/default','{"by":"making","reason":""}',1,1794975112781);
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
INSERT INTO "step" VALUES(1,5,'draw#db377ebea649527e','draw','done',1,1794975110761,1794975110761,NULL,'"0 then"');
INSERT INTO "step" VALUES(2,7,'draw#db377ebea649527e','draw','done',1,1794975110761,1794975110762,NULL,'"0 then"');
INSERT INTO "step" VALUES(3,8,'draw#db377ebea649527e','draw','done',1,1794975110762,1794975110762,NULL,'"0 then"');
INSERT INTO "step" VALUES(4,10,'draw#db377ebea649527e','draw','done',1,1794975110771,1794975110771,NULL,'"0 then"');
INSERT INTO "step" VALUES(5,11,'~undo/paint#85d3d36058f84517','~undo','started',1,1794975110771,NULL,NULL,'{"place":"tests.engines.upgrades.jobs","step":"paint"}');
INSERT INTO "step" VALUES(6,12,'took#85d3d36058f84517','took','done',1,1794975110771,1794975110771,NULL,'"[1, 2] then"');
INSERT INTO "step" VALUES(7,13,'took_plainly#85d3d36058f84517','took_plainly','done',1,1794975110773,1794975110773,NULL,'"[1, 2] then"');
INSERT INTO "step" VALUES(8,7,'~wait/go','~wait','started',1,1794975110773,NULL,NULL,'{"name":"go","schema":{"type":"integer"},"until":null}');
INSERT INTO "step" VALUES(9,8,'~wait/sleep:1 h','~wait','started',1,1794975110773,NULL,NULL,'{"until":1794978710769}');
INSERT INTO "step" VALUES(10,10,'pay#payment 1','pay','started',1,1794975110822,NULL,NULL,'{"effect":"once"}');
INSERT INTO "step" VALUES(11,11,'paint#85d3d36058f84517','paint','done',1,1794975110771,1794975110822,NULL,'"1 then"');
INSERT INTO "step" VALUES(12,12,'took#e9b4131a2212f745','took','done',1,1794975110823,1794975110823,NULL,'"YWI= then"');
INSERT INTO "step" VALUES(13,13,'took_plainly#e9b4131a2212f745','took_plainly','done',1,1794975110825,1794975110825,NULL,'"YWI= then"');
INSERT INTO "step" VALUES(14,12,'took#62879c7571370713','took','done',1,1794975110828,1794975110828,NULL,'"{''1'': 2} then"');
INSERT INTO "step" VALUES(15,11,'~wait/never','~wait','started',1,1794975110828,NULL,NULL,'{"name":"never","schema":{},"until":null}');
INSERT INTO "step" VALUES(16,12,'took#d08fac18abd22028','took','done',1,1794975110829,1794975110829,NULL,'"1.5 then"');
INSERT INTO "step" VALUES(17,13,'took_plainly#62879c7571370713','took_plainly','done',1,1794975110830,1794975110830,NULL,'"{''1'': 2} then"');
INSERT INTO "step" VALUES(18,12,'took#df86fb180083e9f7','took','done',1,1794975110830,1794975110830,NULL,'"2026-03-01T00:00:00Z then"');
INSERT INTO "step" VALUES(19,12,'took#3e670b2fe4792fec','took','done',1,1794975110831,1794975110831,NULL,'"{''width'': 1} then"');
INSERT INTO "step" VALUES(20,13,'took_plainly#d08fac18abd22028','took_plainly','done',1,1794975110832,1794975110832,NULL,'"1.5 then"');
INSERT INTO "step" VALUES(21,12,'took#85d3d36058f84517#2','took','done',1,1794975110832,1794975110832,NULL,'"[1, 2] then"');
INSERT INTO "step" VALUES(22,12,'took#e9b4131a2212f745#2','took','done',1,1794975110832,1794975110832,NULL,'"YWI= then"');
INSERT INTO "step" VALUES(23,12,'took#62879c7571370713#2','took','done',1,1794975110832,1794975110832,NULL,'"{''1'': 2} then"');
INSERT INTO "step" VALUES(24,12,'took#d08fac18abd22028#2','took','done',1,1794975110833,1794975110833,NULL,'"1.5 then"');
INSERT INTO "step" VALUES(25,12,'took#df86fb180083e9f7#2','took','done',1,1794975110833,1794975110833,NULL,'"2026-03-01T00:00:00Z then"');
INSERT INTO "step" VALUES(26,12,'took#3e670b2fe4792fec#2','took','done',1,1794975110833,1794975110833,NULL,'"{''width'': 1} then"');
INSERT INTO "step" VALUES(27,13,'took_plainly#df86fb180083e9f7','took_plainly','done',1,1794975110835,1794975110835,NULL,'"2026-03-01T00:00:00Z then"');
INSERT INTO "step" VALUES(28,12,'took_plainly#85d3d36058f84517','took_plainly','done',1,1794975110836,1794975110843,NULL,'"[1, 2] then"');
INSERT INTO "step" VALUES(29,12,'took_plainly#e9b4131a2212f745','took_plainly','done',1,1794975110841,1794975110843,NULL,'"YWI= then"');
INSERT INTO "step" VALUES(30,12,'took_plainly#62879c7571370713','took_plainly','done',1,1794975110842,1794975110843,NULL,'"{''1'': 2} then"');
INSERT INTO "step" VALUES(31,12,'took_plainly#d08fac18abd22028','took_plainly','done',1,1794975110842,1794975110843,NULL,'"1.5 then"');
INSERT INTO "step" VALUES(32,12,'took_plainly#df86fb180083e9f7','took_plainly','done',1,1794975110842,1794975110843,NULL,'"2026-03-01T00:00:00Z then"');
INSERT INTO "step" VALUES(33,12,'took_plainly#3e670b2fe4792fec','took_plainly','done',1,1794975110842,1794975110843,NULL,'"{''width'': 1} then"');
INSERT INTO "step" VALUES(34,13,'took_plainly#3e670b2fe4792fec','took_plainly','done',1,1794975110843,1794975110843,NULL,'"{''width'': 1} then"');
INSERT INTO "step" VALUES(35,13,'took_plainly#85d3d36058f84517#2','took_plainly','done',1,1794975110854,1794975110854,NULL,'"[1, 2] then"');
INSERT INTO "step" VALUES(36,13,'took_plainly#e9b4131a2212f745#2','took_plainly','done',1,1794975110854,1794975110854,NULL,'"YWI= then"');
INSERT INTO "step" VALUES(37,13,'took_plainly#62879c7571370713#2','took_plainly','done',1,1794975110855,1794975110855,NULL,'"{''1'': 2} then"');
INSERT INTO "step" VALUES(38,12,'~wait/go','~wait','started',1,1794975110855,NULL,NULL,'{"name":"go","schema":{},"until":null}');
INSERT INTO "step" VALUES(39,13,'took_plainly#d08fac18abd22028#2','took_plainly','done',1,1794975110855,1794975110855,NULL,'"1.5 then"');
INSERT INTO "step" VALUES(40,13,'took_plainly#df86fb180083e9f7#2','took_plainly','done',1,1794975110855,1794975110855,NULL,'"2026-03-01T00:00:00Z then"');
INSERT INTO "step" VALUES(41,13,'took_plainly#3e670b2fe4792fec#2','took_plainly','done',1,1794975110856,1794975110856,NULL,'"{''width'': 1} then"');
INSERT INTO "step" VALUES(42,13,'~wait/go','~wait','started',1,1794975110862,NULL,NULL,'{"name":"go","schema":{},"until":null}');
INSERT INTO "step" VALUES(43,14,'took_apart#d08fac18abd22028','took_apart','done',1,1794975110774,1794975112073,NULL,'"1.5 then"');
INSERT INTO "step" VALUES(44,14,'took_apart#df86fb180083e9f7','took_apart','done',1,1794975110774,1794975112078,NULL,'"2026-03-01T00:00:00Z then"');
INSERT INTO "step" VALUES(45,14,'took_apart#3e670b2fe4792fec','took_apart','done',1,1794975110774,1794975112078,NULL,'"{''width'': 1} then"');
INSERT INTO "step" VALUES(46,14,'took_apart#e9b4131a2212f745','took_apart','done',1,1794975110773,1794975112087,NULL,'"YWI= then"');
INSERT INTO "step" VALUES(47,14,'took_apart#62879c7571370713','took_apart','done',1,1794975110774,1794975112089,NULL,'"{''1'': 2} then"');
INSERT INTO "step" VALUES(48,14,'took_apart#85d3d36058f84517','took_apart','done',1,1794975110773,1794975112110,NULL,'"[1, 2] then"');
INSERT INTO "step" VALUES(49,14,'took_apart#85d3d36058f84517#2','took_apart','done',1,1794975112113,1794975112114,NULL,'"[1, 2] then"');
INSERT INTO "step" VALUES(50,14,'~wait/go','~wait','started',2,1794975112766,NULL,NULL,'{"name":"go","schema":{},"until":null}');
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
INSERT INTO "tally" VALUES('default','pending',6);
INSERT INTO "tally" VALUES('default','retryable',1);
INSERT INTO "tally" VALUES('default','review',3);
INSERT INTO "tally" VALUES('default','scheduled',1);
INSERT INTO "tally" VALUES('later','available',23);
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

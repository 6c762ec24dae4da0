// A worker in Node, without any package: it fetches jobs over HTTP, records each item as a step, and may be killed at
// any time. Another one continues at the first item that isn't recorded.
//
//   holdfast serve
//   node examples/worker.mjs                 (HOLDFAST_SERVER, HOLDFAST_TOKEN, QUEUE and WORKER_ID are optional)

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

const server = process.env.HOLDFAST_SERVER ?? "http://127.0.0.1:8700";
const token = process.env.HOLDFAST_TOKEN;
const queue = process.env.QUEUE ?? "images";
const worker = process.env.WORKER_ID ?? `node-${randomUUID()}`;
const beatMs = Number(process.env.BEAT_MS ?? 2_000);
const itemMs = Number(process.env.ITEM_MS ?? 200);

let stopping = false;
process.on("SIGTERM", () => (stopping = true));

class Refused extends Error {
  constructor(status, error) {
    super(`${status} ${error?.code ?? ""}: ${error?.message ?? "no answer"}`);
    this.status = status;
    this.code = error?.code;
  }
}

async function call(method, path, body) {
  const answer = await fetch(`${server}/ojs/v1${path}`, {
    method,
    headers: {
      ...(body ? { "Content-Type": "application/openjobspec+json" } : {}),
      ...(token ? { Authorization: `Bearer ${token}` } : {}),
    },
    body: body && JSON.stringify(body),
    signal: AbortSignal.timeout(30_000),
  });
  const content = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, content.error);
  return content;
}

// Writes go out again while the server is away. A refusal is final: 409 says that the lease is lost.
async function persist(method, path, body) {
  for (let tries = 0; ; tries++) {
    try {
      return await call(method, path, body);
    } catch (error) {
      const isRefused = error instanceof Refused && error.status < 500;
      if (isRefused || tries >= 8) throw error;
      await sleep(Math.min(250 * 2 ** tries, 5_000));
    }
  }
}

// What the job does. Each item costs money, so none is made twice.
async function draw(scene) {
  await sleep(itemMs);
  return { file: `${scene}.png` };
}

async function recordedSteps(job) {
  const done = new Map();
  for (let cursor = "0"; cursor !== null; ) {
    const page = await persist("GET", `/jobs/${job.id}/steps?cursor=${cursor}`);
    for (const step of page.steps) done.set(step.path, step.result);
    cursor = page.pagination.next_cursor;
  }
  return done;
}

async function run(job, lease) {
  const [scenes] = job.args;
  const done = await recordedSteps(job);
  console.log(`${worker} runs ${job.id}, attempt ${job.attempt}: ${done.size} of ${scenes.length} are recorded`);
  const images = [];
  for (const [place, scene] of scenes.entries()) {
    const path = `draw#${place}`;
    if (!done.has(path)) {
      if (lease.lost) throw new Refused(409, { code: "x_lease_lost", message: "another worker has the job" });
      const step = { name: "draw", key: String(place), result: await draw(scene), lease_token: job.lease_token };
      const answer = await persist("POST", `/jobs/${job.id}/steps`, step);
      done.set(path, answer.step.result);
      console.log(`${worker} recorded ${path}`);
    }
    images.push(done.get(path));
    const progress = { progress: (place + 1) / scenes.length, lease_token: job.lease_token };
    await persist("PUT", `/jobs/${job.id}/progress`, progress);
  }
  return { images };
}

// While a job runs, heartbeats keep it reserved. Their answer says whether it was cancelled or lost.
async function keepAlive(job, lease) {
  while (!lease.over) {
    await sleep(beatMs);
    if (lease.over) return;
    try {
      const beat = await call("POST", "/workers/heartbeat", {
        worker_id: worker,
        active_jobs: [job.id],
        lease_tokens: { [job.id]: job.lease_token },
        heartbeat_interval_ms: beatMs,
      });
      if (!beat.jobs_extended.includes(job.id)) lease.lost = true;
      if (beat.state !== "running") stopping = true;
    } catch (error) {
      if (error instanceof Refused && error.status === 409) lease.lost = true;
      console.error(`${worker}: heartbeat: ${error.message}`);
    }
  }
}

async function work(job) {
  const lease = { lost: false, over: false };
  const alive = keepAlive(job, lease);
  const held = { job_id: job.id, worker_id: worker, lease_token: job.lease_token };
  try {
    const result = await run(job, lease);
    await persist("POST", "/workers/ack", { ...held, result });
    console.log(`${worker} completed ${job.id}`);
  } catch (error) {
    console.error(`${worker}: ${job.id}: ${error.message}`);
    if (!(error instanceof Refused && error.status === 409)) {
      const failure = { code: "handler_error", type: error.name, message: error.message };
      await persist("POST", "/workers/nack", { ...held, error: failure }).catch((why) => console.error(why.message));
    }
  } finally {
    lease.over = true;
    await alive;
  }
}

console.log(`${worker} works on queue ${queue} of ${server}`);
while (!stopping) {
  try {
    const asked = { queues: [queue], worker_id: worker, heartbeat_interval_ms: beatMs, wait_ms: 2_000 };
    const { jobs } = await call("POST", "/workers/fetch", asked);
    for (const job of jobs) await work(job);
  } catch (error) {
    console.error(`${worker}: fetch: ${error.message}`);
    await sleep(1_000);
  }
}

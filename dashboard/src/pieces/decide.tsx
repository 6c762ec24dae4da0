// What a person decides: a question with its form, an effect in doubt with two doors, a failure with its arguments.
import { useEffect, useState } from "preact/hooks";
import { post, Refused } from "../api";
import { now, span } from "../clock";
import { BASE } from "../router";
import type { Act, DoubtCard, JobPage, QuestionCard, ReplayPlan, ReviewCard, Schema } from "../views";
import { ActButton, Copy, mayDo, say } from "./acts";
import { Button, Pairs } from "./card";
import { Fields, initial, placed, resolve } from "./form";
import { Glyph } from "./glyph";
import { asList, byName, type Named } from "./named";
import { Preview } from "./preview";
import { Age, Json } from "./words";

type Errors = Record<string, string>;

/** A draft that survives a reload. It is forgotten once it was sent. */
function useDraft<T>(name: string, first: T): [T, (value: T) => void, () => void] {
  const key = `holdfast.draft.${name}`;
  const read = (): T => {
    try {
      const kept = sessionStorage.getItem(key);
      return kept === null ? first : (JSON.parse(kept) as T);
    } catch {
      return first;
    }
  };
  const [value, setValue] = useState<T>(read);
  useEffect(() => setValue(read()), [key]);
  const keep = (next: T) => {
    setValue(next);
    try {
      sessionStorage.setItem(key, JSON.stringify(next ?? null));
    } catch {
      // A full or forbidden storage only costs the draft.
    }
  };
  return [value, keep, () => sessionStorage.removeItem(key)];
}

function useSend(): { errors: Errors; whole: string; busy: boolean; send: (act: Act, body: unknown) => Promise<boolean> } {
  const [errors, setErrors] = useState<Errors>({});
  const [whole, setWhole] = useState("");
  const [busy, setBusy] = useState(false);
  const send = async (act: Act, body: unknown) => {
    setBusy(true);
    setErrors({});
    setWhole("");
    try {
      const done = await post<{ words: string }>(act.path, body);
      say(done.words);
      return true;
    } catch (error) {
      const refused = error instanceof Refused ? error : new Refused(String(error), 0);
      setErrors(refused.fields);
      setWhole(refused.message);
      requestAnimationFrame(() => document.querySelector<HTMLElement>(".field.bad :is(input, select, textarea, button)")?.focus());
      return false;
    } finally {
      setBusy(false);
    }
  };
  return { errors, whole, busy, send };
}

function Problem({ text }: { text: string }) {
  return text ? (
    <p class="error" role="alert">
      {text}
    </p>
  ) : null;
}

const isText = (value: unknown): value is string => typeof value === "string";

export function QuestionForm({ of }: { of: QuestionCard }) {
  const schema = of.schema as Schema;
  const [value, keep, forget] = useDraft<unknown>(`${of.job}.${of.name}`, initial(schema, schema));
  const { errors, whole, busy, send } = useSend();
  const fields = placed(errors, schema);
  const answer = async () => {
    const isObject = resolve(schema, schema).schema.type === "object";
    if (await send(of.act, { name: of.name, value: value ?? (isObject ? {} : null) })) forget();
  };
  return (
    <form
      class="decide"
      noValidate
      onSubmit={(event) => (event.preventDefault(), void answer())}
      onKeyDown={(event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && (event.preventDefault(), void answer())}
    >
      <h2>{isText(of.question) ? of.question : of.job_name}</h2>
      <p class="muted">{`From ${of.type}. ${of.sentence}`}</p>
      {!isText(of.question) && <Json value={of.question} />}
      {of.refused && <Problem text={of.refused} />}
      <Fields schema={schema} root={schema} value={value} set={keep} errors={fields} question={of.question} />
      <Problem text={Object.keys(fields).some(Boolean) ? "" : whole} />
      {mayDo(of.act) && (
        <div class="decide-acts">
          <Button main type="submit" keys="Ctrl Enter" disabled={busy}>
            {of.act.words}
          </Button>
          <span class="faint">kept in the job's history with your name</span>
        </div>
      )}
    </form>
  );
}

function Reason({ value, set }: { value: string; set: (text: string) => void }) {
  return (
    <div class="field">
      <label>
        <span>
          Reason <small>(may be left out, kept in the history)</small>
        </span>
        <input value={value} maxLength={500} onInput={(event) => set(event.currentTarget.value)} />
      </label>
    </div>
  );
}

function Doors({ job, of }: { job: string; of: DoubtCard }) {
  const [result, keep, forget] = useDraft(`${job}.${of.path}`, "null");
  const [reason, setReason] = useState("");
  const [bad, setBad] = useState("");
  const { whole, busy, send } = useSend();
  const happened = async () => {
    let value: unknown;
    try {
      value = JSON.parse(result);
    } catch {
      return setBad("The result isn't JSON. Put text in quotes.");
    }
    setBad("");
    if (await send(of.happened, { path: of.path, result: value, reason })) forget();
  };
  const facts = [
    ...(of.started_at ? [{ name: "Started", text: `${span(Math.max(0, now.value - Date.parse(of.started_at)))} ago` }] : []),
    ...(of.worker ? [{ name: "By", text: of.worker }] : []),
    ...(of.key ? [{ name: "Key", text: of.key, mono: true }] : []),
    ...(of.error ? [{ name: "Error", text: of.error }] : []),
  ];
  return (
    <section class="decide" aria-label={of.name}>
      <h2>{`Did ${of.name} happen?`}</h2>
      <p class="muted">{of.sentence}</p>
      <Pairs of={facts} />
      {mayDo(of.happened) && (
        <>
          <div class="doors">
            <div class="door">
              <h3>{of.happened.words}</h3>
              <p>The job continues after this step, with the result that you give.</p>
              <label>
                <span>
                  Result <small>(JSON)</small>
                </span>
                <input class="mono" value={result} aria-invalid={bad ? true : undefined} onInput={(event) => keep(event.currentTarget.value)} />
              </label>
              <Problem text={bad} />
              <Button main onClick={() => void happened()} disabled={busy}>
                {of.happened.words}
              </Button>
            </div>
            <div class="door">
              <h3>{of.again.words}</h3>
              <p>The step runs again under a new lease, with the same idempotency key.</p>
              <Button onClick={() => void send(of.again, { path: of.path, again: true, reason })} disabled={busy}>
                Do it again
              </Button>
            </div>
          </div>
          <Reason value={reason} set={setReason} />
          <Copy text={of.happened.command} />
        </>
      )}
      <Problem text={whole} />
    </section>
  );
}

function Trace({ of }: { of: ReviewCard }) {
  const [whole, setWhole] = useState(false);
  const trace = of.error?.traceback?.trimEnd() ?? "";
  if (!trace) return null;
  // The last frame is where it went wrong; the rest unfolds. The error itself stands above.
  const lines = trace.split("\n");
  const last = lines.reduce((at, line, i) => (/^\s+File /.test(line) ? i : at), 0);
  const frame = lines.slice(last).filter((line, i) => i === 0 || /^\s/.test(line));
  return (
    <>
      <pre class="json plain-text trace">{whole ? trace : frame.join("\n")}</pre>
      {last > 1 && (
        <button type="button" class="link" onClick={() => setWhole(!whole)}>
          {whole ? "Only the last frame" : "The whole traceback"}
        </button>
      )}
    </>
  );
}

/** The whole arguments: a page carries only small ones. */
function useArguments(of: ReviewCard): unknown {
  const [args, setArgs] = useState<unknown>(of.arguments.is_whole ? of.arguments.json : undefined);
  useEffect(() => {
    if (!of.arguments.is_whole)
      fetch(`${BASE}/api/v1/jobs/${of.job}/arguments`)
        .then((answer) => answer.json())
        .then(setArgs, () => undefined);
  }, [of.job]);
  return args;
}

/** What a replay would do, by the server's plan: with these arguments, or as the job is. */
function usePlan(job: string): [string, (args?: unknown) => Promise<string>] {
  const [plan, setPlan] = useState("");
  const ask = async (args?: unknown) => {
    try {
      setPlan((await post<ReplayPlan>(`/api/v1/jobs/${job}/replay/preview`, args === undefined ? {} : { args })).words);
      return "";
    } catch (error) {
      return error instanceof Refused ? error.message : String(error);
    }
  };
  useEffect(() => (setPlan(""), void ask()), [job]);
  return [plan, ask];
}

function FailureForm({ of, bare }: { of: ReviewCard; bare?: boolean }) {
  const stored = useArguments(of);
  const [draft, keep, forget] = useDraft<string>(`${of.job}.args`, "");
  const [reason, setReason] = useState("");
  const [result, setResult] = useState("");
  const [door, setDoor] = useState<"" | "edit" | "result">("");
  const [bad, setBad] = useState("");
  const [plan, ask] = usePlan(of.job);
  const { errors, whole, busy, send } = useSend();
  const act = (name: string) => of.acts.find((one) => one.name === name);
  const [replay, supply, discard] = [act("replay"), act("resolve"), act("discard")];
  const json = (text: string, then: (value: unknown) => void) => {
    try {
      setBad("");
      then(JSON.parse(text));
    } catch {
      setBad("This is not JSON. Put text in quotes.");
    }
  };
  const text = draft || JSON.stringify(stored ?? null, null, 2);
  const schema = of.schema as Schema | null;
  const names = Object.keys(schema?.properties ?? {});
  const [typed, keepTyped, forgetTyped] = useDraft<Named | null>(`${of.job}.typed`, null);
  const values = typed ?? byName(stored, names);
  const fields = schema ? placed(errors, schema) : {};
  const edited = async (args: unknown) => {
    if (replay && (await send(replay, { args, reason }))) (forget(), forgetTyped());
  };
  const withEdited = (then: (args: unknown) => unknown) => (names.length ? void then(asList(values, names)) : json(text, (args) => void then(args)));
  return (
    <section class="decide">
      {bare && <h2>{of.error?.line || of.sentence}</h2>}
      <p class="muted">{[of.type, of.before].filter(Boolean).join(", ")}</p>
      <Trace of={of} />
      {(plan || of.replay_words) && <p class="plan">{plan || of.replay_words}</p>}
      {door === "edit" && schema && names.length > 0 && <Fields schema={schema} root={schema} value={values} set={(next) => keepTyped(next as Named)} errors={fields} />}
      {door === "edit" && !names.length && <JsonArea label="Arguments" value={text} set={keep} bad={bad || Object.values(errors).join("; ")} />}
      {door === "result" && <JsonArea label="The result" value={result} set={setResult} bad={bad} />}
      {replay && mayDo(replay) ? (
        <>
          <Reason value={reason} set={setReason} />
          <Problem text={door === "edit" && names.length ? bad || (Object.keys(fields).some(Boolean) ? "" : whole) : whole} />
          <div class="decide-acts">
            {door === "" && (
              <>
                <Button main keys="R" onClick={() => void send(replay, { reason })} disabled={busy}>
                  {replay.words}
                </Button>
                <Button onClick={() => setDoor("edit")}>Edit and replay</Button>
                {supply && <Button onClick={() => setDoor("result")}>{supply.words}</Button>}
                {discard && <ActButton act={discard} reason={reason} />}
              </>
            )}
            {door === "edit" && (
              <>
                <Button main onClick={() => withEdited(edited)} disabled={busy}>
                  Replay with this
                </Button>
                <Button onClick={() => withEdited((args) => void ask(args).then(setBad))}>What would it do?</Button>
              </>
            )}
            {door === "result" && supply && (
              <Button main onClick={() => json(result || "null", (found) => void send(supply, { result: found, reason }))} disabled={busy}>
                Complete with this
              </Button>
            )}
            {door && <Button onClick={() => setDoor("")}>Back</Button>}
          </div>
          <Copy text={reason ? `${replay.command} --reason '${reason.replaceAll("'", "'\\''")}'` : replay.command} />
        </>
      ) : (
        <Preview value={of.arguments.json} />
      )}
    </section>
  );
}

function JsonArea({ label, value, set, bad }: { label: string; value: string; set: (text: string) => void; bad: string }) {
  return (
    <div class={`field${bad ? " bad" : ""}`}>
      <label>
        <span>
          {label} <small>(JSON)</small>
        </span>
        <textarea class="mono tall" spellcheck={false} value={value} aria-invalid={bad ? true : undefined} onInput={(event) => set(event.currentTarget.value)} />
      </label>
      <Problem text={bad} />
    </div>
  );
}

/** All that a person can decide about a job; nothing if it needs nobody. */
export function Decide({ questions, review, bare }: Pick<JobPage, "questions" | "review"> & { bare?: boolean }) {
  const one = questions[0] ?? review;
  if (!one) return null;
  const isQuestion = questions.length > 0;
  const doubts = review ? [...review.doubts, ...review.may_not_fit] : [];
  return (
    <div class={bare ? "decisions" : "card decisions"} id="decide">
      <header>
        <span>{isQuestion ? `${questions[0]!.job_name} asks` : review!.name}</span>
        <span class={`pill is-${isQuestion ? "pending" : "review"} right`}>
          <Glyph state={isQuestion ? "pending" : "review"} size={14} />
          <span>
            {isQuestion ? "waits for " : review!.doubts.length ? "in doubt for " : "in review for "}
            <Age since={isQuestion ? questions[0]!.asked_at : review!.since} />
          </span>
        </span>
      </header>
      {questions.map((question) => (
        <QuestionForm key={question.job + question.name} of={question} />
      ))}
      {review && doubts.map((doubt) => <Doors key={doubt.path} job={review.job} of={doubt} />)}
      {review && !review.doubts.length && <FailureForm key={review.job} of={review} bare={bare} />}
    </div>
  );
}

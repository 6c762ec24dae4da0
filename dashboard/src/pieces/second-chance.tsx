// A second chance: a step that is rejected and runs again, a run that begins before it, and two runs side by side.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, post, Refused } from "../api";
import { span } from "../clock";
import { go, pathOf } from "../router";
import type { Acted, MadeFrom, StepPage } from "../views";
import { Copy, mayDo, quoted, say, Twice } from "./acts";
import { Button, Loading } from "./card";
import { Icon } from "./glyph";
import { Preview } from "./preview";

const FEEDBACK = 10_000;
const SHOWN = 40;

/** What a person can do with a recorded step that isn't good enough. */
export function SecondChance({ of, done }: { of: StepPage; done: () => void }) {
  const [feedback, setFeedback] = useState("");
  const [args, setArgs] = useState("");
  const [trouble, setTrouble] = useState("");
  const [busy, setBusy] = useState(false);
  const act = (name: string) => of.acts.find((one) => one.name === name && mayDo(one));
  const [again, fork] = [act("rerun"), act("fork")];
  if (!again && !fork) return null;
  const path = of.step.path;
  const send = async (to: string, body: object) => {
    setBusy(true);
    setTrouble("");
    try {
      const made = await post<Acted>(to, body);
      say(made.words);
      done();
      go(pathOf("jobs", made.job.id));
    } catch (error) {
      setTrouble(error instanceof Refused ? error.message : String(error));
    } finally {
      setBusy(false);
    }
  };
  const rerun = () => {
    const given = args.trim() ? parsed(args) : { args: undefined };
    if (!given) setTrouble("The arguments aren't JSON. Put text in quotes.");
    else if (again) void send(again.path, { steps: [path], feedback, allow: of.is_effect ? [path] : [], ...given });
  };
  const words = [
    again?.command,
    feedback && `--feedback ${quoted(feedback)}`,
    args.trim() && `--args ${quoted(args.trim())}`,
    of.is_effect && `--allow ${quoted(path)}`,
  ];
  return (
    <section class="chance" aria-label="A second chance">
      {again && (
        <label>
          <span>
            What is wrong with it? <small>(the step can read this)</small>
          </span>
          <textarea value={feedback} maxLength={FEEDBACK} onInput={(event) => setFeedback(event.currentTarget.value)} />
        </label>
      )}
      {again && (
        <label>
          <span>
            Other arguments <small>(all of the step's, as a JSON list; may be left out)</small>
          </span>
          <input class="mono" value={args} spellcheck={false} onInput={(event) => setArgs(event.currentTarget.value)} />
        </label>
      )}
      {trouble && (
        <p class="error" role="alert">
          {trouble}
        </p>
      )}
      <div class="decide-acts">
        {again &&
          (of.is_effect ? (
            <Twice sure="Let its effect happen again" onSure={rerun} disabled={busy}>
              {again.words}
            </Twice>
          ) : (
            <Button main onClick={rerun} disabled={busy}>
              {again.words}
            </Button>
          ))}
        {fork && (
          <Button onClick={() => void send(fork.path, { until: path })} disabled={busy}>
            {fork.words}
          </Button>
        )}
      </div>
      {again && <Copy text={words.filter(Boolean).join(" ")} />}
    </section>
  );
}

function parsed(text: string): { args: unknown } | null {
  try {
    return { args: JSON.parse(text) };
  } catch {
    return null;
  }
}

interface Compared {
  runs: { id: string; state: string; result: unknown; ms: number | null; spent: Record<string, number> }[];
  same_result: boolean;
  same: number;
  total: number;
  steps: { path: string; name: string; relation: string; results: unknown[]; ms: (number | null)[] }[];
}

const cost = (spent: Record<string, number>): string => (spent.usd ? `, $${spent.usd.toFixed(2)}` : "");
const took = (ms: number | null | undefined): string => (ms == null ? "–" : span(ms));

function Side({ of, name }: { of: Compared["runs"][number]; name: string }) {
  return (
    <div class="run-side">
      <h3>{name}</h3>
      <p>{`${of.state}${of.ms == null ? "" : ` in ${span(of.ms)}`}${cost(of.spent)}`}</p>
      <Preview value={of.result} />
    </div>
  );
}

/** The run that this one was made from, and this one: results, steps, time and money. */
export function ComparePanel({ id, from, close }: { id: string; from: MadeFrom; close: () => void }) {
  const [found, setFound] = useState<Compared | null>(null);
  const [trouble, setTrouble] = useState("");
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    let current = true;
    get<Compared>(`/api/v1/jobs/${from.job}/compare?other=${encodeURIComponent(id)}`).then(
      (one) => current && setFound(one),
      (error) => current && setTrouble(error instanceof Refused ? error.message : String(error)),
    );
    box.current?.focus();
    return () => void (current = false);
  }, [id, from.job]);
  const changed = found?.steps.filter((one) => one.relation !== "same").slice(0, SHOWN) ?? [];
  const differing = found ? found.total - found.same : 0;
  return (
    <div class="panel wide" role="dialog" aria-label="Both runs side by side" tabIndex={-1} ref={box} onKeyDown={(event) => event.key === "Escape" && (event.stopPropagation(), close())}>
      <header>
        <h2>Both runs side by side</h2>
        <button type="button" class="btn square" aria-label="Close" onClick={close}>
          <Icon name="close" />
        </button>
      </header>
      {!found && !trouble && <Loading />}
      {trouble && <p class="error">{trouble}</p>}
      {found && (
        <>
          <div class="sides">
            <Side of={found.runs[0]!} name={`First, ${from.short}`} />
            <Side of={found.runs[1]!} name={`This ${from.how}`} />
          </div>
          <p>{`${found.same.toLocaleString("en")} of ${found.total.toLocaleString("en")} steps are the same.`}</p>
          {changed.map((one) => (
            <section key={one.path} class="pair" aria-label={one.name}>
              <h3>
                {one.name} <small>{`${one.relation}; took ${took(one.ms[0])} / ${took(one.ms[1])}`}</small>
              </h3>
              <div class="sides">
                <Preview value={one.results[0]} />
                <Preview value={one.results[1]} />
              </div>
            </section>
          ))}
          {differing > changed.length && <p class="muted">{`And ${(differing - changed.length).toLocaleString("en")} more.`}</p>}
        </>
      )}
    </div>
  );
}

// Acts on many jobs: the number, a preview in words, then a bounded walk on the server with progress and a stop.
import { useEffect, useState } from "preact/hooks";
import { get, post, Refused } from "../api";
import type { BulkPreview, BulkProgress } from "../views";
import { may, say, Twice } from "./acts";
import { Button } from "./card";

type What = "cancel" | "replay";

const NAMES: Record<What, string> = { cancel: "Cancel", replay: "Replay" };
const LOOK_MS = 500;

/** The filter of the list as the API takes it. What it doesn't know (a key, an id) names single jobs, not many. */
const filterOf = (query: string): object | null => {
  const given = Object.fromEntries(new URLSearchParams(query));
  if (Object.keys(given).some((name) => !["state", "queue", "type", "order"].includes(name))) return null;
  const { state, queue, type } = given;
  return state || queue || type ? { ...(state && { state: [state] }), ...(queue && { queue }), ...(type && { type }) } : null;
};

export function Dock({ chosen, clear, filter, total }: { chosen: ReadonlySet<string>; clear: () => void; filter: string; total: number }) {
  const [every, setEvery] = useState(false);
  const [plan, setPlan] = useState<{ what: What; where: object; preview: BulkPreview } | null>(null);
  const [walk, setWalk] = useState<BulkProgress | null>(null);
  const [reason, setReason] = useState("");
  const all = filterOf(filter);
  const fail = (error: unknown) => say(error instanceof Refused ? error.message : String(error), true);
  const preview = (what: What, where: object) => void post<BulkPreview>("/api/v1/bulk/preview", { act: what, where }).then((found) => setPlan({ what, where, preview: found }), fail);
  const these = { ids: [...chosen] };
  const begin = () => {
    if (!plan) return;
    post<BulkProgress>("/api/v1/bulk", { act: plan.what, where: plan.where, reason }).then((begun) => {
      setWalk(begun);
      setPlan(null);
      clear();
    }, fail);
  };
  useEffect(() => {
    if (!walk || walk.ended_at) return;
    const timer = setInterval(() => void get<BulkProgress>(`/api/v1/bulk/${walk.id}`).then(setWalk, fail), LOOK_MS);
    return () => clearInterval(timer);
  }, [walk?.id, walk?.ended_at]);
  useEffect(() => {
    const hear = (event: Event) => {
      if ((event as CustomEvent<string>).detail !== "Escape") return;
      setPlan(null);
      setEvery(false);
      clear();
    };
    document.addEventListener("holdfast:key", hear);
    return () => document.removeEventListener("holdfast:key", hear);
  }, [chosen]);
  useEffect(() => setEvery(false), [filter]);
  if (!chosen.size && !plan && !walk && !every)
    return all && total > 0 ? (
      <p class="note-line all-match">
        <button type="button" class="link" onClick={() => setEvery(true)}>
          Act on all that match
        </button>
      </p>
    ) : null;
  return (
    <div class="dock" role="region" aria-label="Acts on many jobs" aria-live="polite">
      {walk ? (
        <>
          <span>{walk.sentence}</span>
          {walk.ended_at ? (
            <Button small onClick={() => setWalk(null)}>
              Close
            </Button>
          ) : (
            <Button small onClick={() => void post<BulkProgress>(`/api/v1/bulk/${walk.id}/stop`).then(setWalk, fail)}>
              Stop
            </Button>
          )}
        </>
      ) : plan ? (
        <>
          <span>{plan.preview.sentence}</span>
          <input aria-label="Reason" placeholder="Reason (optional)" value={reason} maxLength={500} onInput={(event) => setReason(event.currentTarget.value)} />
          {plan.preview.total > 0 &&
            (plan.what === "replay" ? (
              <Button small main onClick={begin}>
                {`${NAMES[plan.what]} ${plan.preview.total.toLocaleString("en")}${plan.preview.is_least ? "+" : ""}`}
              </Button>
            ) : (
              <Twice small sure="Press again to do it" onSure={begin}>
                {`${NAMES[plan.what]} ${plan.preview.total.toLocaleString("en")}${plan.preview.is_least ? "+" : ""}`}
              </Twice>
            ))}
          <Button small onClick={() => setPlan(null)}>
            Back
          </Button>
        </>
      ) : (
        <>
          <span>{chosen.size ? `${chosen.size.toLocaleString("en")} chosen` : "All that match"}</span>
          {chosen.size > 0 && may("review") && (
            <Button small keys="R" onClick={() => preview("replay", these)}>
              Replay
            </Button>
          )}
          {chosen.size > 0 && may("act") && (
            <Button small keys="C" onClick={() => preview("cancel", these)}>
              Cancel
            </Button>
          )}
          {may("review") && all && (
            <Button small onClick={() => preview("replay", all)}>
              Replay all that match
            </Button>
          )}
          {may("act") && all && (
            <Button small onClick={() => preview("cancel", all)}>
              Cancel all that match
            </Button>
          )}
          <Button small onClick={() => (setEvery(false), clear())}>
            Clear
          </Button>
        </>
      )}
    </div>
  );
}

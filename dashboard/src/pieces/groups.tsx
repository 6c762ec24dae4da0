// The jobs in review by what stopped them, and a replay of a whole group, after a look at what it would do.
import { useEffect, useState } from "preact/hooks";
import { get, post, Refused } from "../api";
import { go, pathOf } from "../router";
import type { BulkPreview, BulkProgress, ReviewGroupLine, ReviewGroups } from "../views";
import { may, say } from "./acts";
import { Button, Card } from "./card";
import { Age } from "./words";

const SHOWN = 12;
const FROM = 2;
const READ_MS = 5_000;

const fail = (error: unknown) => say(error instanceof Refused ? error.message : String(error), true);

function Group({ of }: { of: ReviewGroupLine }) {
  const [plan, setPlan] = useState<BulkPreview | null>(null);
  const [reason, setReason] = useState("");
  const asked = { act: "replay", where: of.where };
  const look = () => void post<BulkPreview>("/api/v1/bulk/preview", asked).then(setPlan, fail);
  const begin = () => void post<BulkProgress>("/api/v1/bulk", { ...asked, reason }).then((begun) => go(pathOf("jobs", begun.id)), fail);
  return (
    <li class="group">
      <b>{of.count.toLocaleString("en")}</b>
      <span class="two-lines">
        <b>{`${of.type}: ${of.error} in ${of.step}`}</b>
        <span>{of.message}</span>
      </span>
      <span class="muted">
        first <Age since={of.first} /> ago, last <Age since={of.last} /> ago{of.in_doubt > 0 && `, ${of.in_doubt.toLocaleString("en")} in doubt`}
      </span>
      {may("review") && !plan && (
        <Button small onClick={look} label={`Replay all: ${of.type}, ${of.error} in ${of.step}`}>
          Replay all
        </Button>
      )}
      {plan && (
        <div class="chance">
          <p class="plan">{[plan.sentence, plan.plan].filter(Boolean).join("\n")}</p>
          <input aria-label="Reason" placeholder="Reason (optional)" value={reason} maxLength={500} onInput={(event) => setReason(event.currentTarget.value)} />
          <div class="decide-acts">
            <Button main onClick={begin}>{`Replay ${plan.total.toLocaleString("en")}${plan.is_least ? "+" : ""}`}</Button>
            <Button onClick={() => setPlan(null)}>Back</Button>
          </div>
        </div>
      )}
    </li>
  );
}

/** Shown where a group has several jobs: one by one is then the long way. */
export function Groups({ version }: { version: string }) {
  const [found, setFound] = useState<ReviewGroups | null>(null);
  useEffect(() => {
    let current = true;
    const read = () => void get<ReviewGroups>("/api/v1/review/groups").then((groups) => current && setFound(groups), () => undefined);
    const timer = setTimeout(read, found ? READ_MS : 0);
    return () => void ((current = false), clearTimeout(timer));
  }, [version]);
  const groups = found?.groups.filter((one) => one.count >= FROM) ?? [];
  if (!groups.length) return null;
  return (
    <Card title="By cause" note={found!.sentence} class="groups">
      <ul class="rows">
        {groups.slice(0, SHOWN).map((one) => (
          <Group key={`${one.type} ${one.step} ${one.error}`} of={one} />
        ))}
      </ul>
    </Card>
  );
}

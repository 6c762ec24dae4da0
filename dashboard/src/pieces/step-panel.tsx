// One step beside the page: its result, tries, error and key, and a second chance. Opened from an item or a bar.
import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "../api";
import { clock } from "../clock";
import type { JobPage, StepPage } from "../views";
import { Loading, Pairs } from "./card";
import { Icon } from "./glyph";
import { ValueShown } from "./preview";
import { SecondChance } from "./second-chance";

export function StepPanel({ view, path, close }: { view: JobPage; path: string; close: () => void }) {
  const [found, setFound] = useState<StepPage | null | undefined>(undefined);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    let current = true;
    setFound(undefined);
    get<StepPage>(`/api/v1/jobs/${view.job.id}/step?path=${encodeURIComponent(path)}`).then(
      (one) => current && setFound(one),
      () => current && setFound(null),
    );
    box.current?.focus();
    return () => void (current = false);
  }, [view.job.id, path]);
  const step = found?.step;
  const name = step?.name || view.items.flatMap((one) => one.cells).find((one) => one.path === path)?.name || path;
  return (
    <div class="panel" role="dialog" aria-label={`Step ${name}`} tabIndex={-1} ref={box} onKeyDown={(event) => event.key === "Escape" && (event.stopPropagation(), close())}>
      <header>
        <h2>{name}</h2>
        <button type="button" class="btn square" aria-label="Close" onClick={close}>
          <Icon name="close" />
        </button>
      </header>
      {found === undefined && <Loading />}
      {found === null && <p class="empty">Nothing is recorded of this step yet.</p>}
      {found && step && (
        <>
          <Pairs
            of={[
              { name: "Step", text: step.words },
              { name: "Epoch", text: String(step.epoch) },
              { name: "Started", text: clock(step.started_at) },
              ...(step.finished_at ? [{ name: "Ended", text: clock(step.finished_at) }] : []),
              ...(found.spent.usd ? [{ name: "Spent", text: `$${found.spent.usd.toFixed(2)}` }] : []),
              { name: "Key", text: found.key, mono: true },
              ...(found.code ? [{ name: "Code", text: found.code, mono: true }] : []),
            ]}
          />
          {step.error && <pre class="json plain-text bad">{`${step.error.line}\n\n${step.error.traceback}`}</pre>}
          {found.result && <ValueShown of={found.result} />}
          {found.rejected && (
            <section class="chance" aria-label="Rejected before">
              <h3>Rejected before</h3>
              {found.rejected.feedback && <p>{found.rejected.feedback}</p>}
              {found.rejected.result && <ValueShown of={found.rejected.result} />}
            </section>
          )}
          <SecondChance key={path} of={found} done={close} />
        </>
      )}
    </div>
  );
}

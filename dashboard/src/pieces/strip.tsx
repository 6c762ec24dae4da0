// The stage strip: where a job is, as bars. Large on a job's page, small in rows.
import { type JobLine, partOf, type StageBar, type State, stateOf } from "../views";
import { Glyph } from "./glyph";
import { readable } from "./words";

export function Strip({ stages, state, open }: { stages: StageBar[]; state: State; open: (path: string) => void }) {
  if (!stages.length) return null;
  return (
    <ol class="strip" aria-label="Stages">
      {stages.map((one) => {
        const part = partOf(one) ?? 0;
        return (
          <li key={one.name} class={one.place === "current" ? `current is-${state}` : one.place} aria-current={one.place === "current" ? "step" : undefined}>
            <div class={`bar is-${one.place === "passed" ? "completed" : state}`}>
              <i style={{ width: `${one.place === "passed" ? 100 : one.place === "current" ? Math.max(3, 100 * part) : 0}%` }} />
            </div>
            <div class="label">
              <b>
                {one.place === "passed" && <Glyph state="completed" size={13} />}
                {one.place === "current" && <Glyph state={state} part={part} size={13} />}
                {one.path ? (
                  <button type="button" class="link" data-path={one.path} title={`Open ${one.name}`} onClick={() => open(one.path!)}>
                    {readable(one.name)}
                  </button>
                ) : (
                  <span title={one.name}>{readable(one.name)}</span>
                )}
              </b>
              <small>{one.words}</small>
            </div>
          </li>
        );
      })}
    </ol>
  );
}

const MOST = 12;

export function SmallStrip({ of }: { of: JobLine }) {
  const current = of.stage_number ?? 0;
  return (
    <span class="small-strip" aria-hidden="true">
      {of.stages.slice(0, MOST).map((name, i) => {
        const passed = i + 1 < current;
        return (
          <i key={name} class={passed ? "passed is-completed" : i + 1 === current ? `current is-${stateOf(of.state)}` : "ahead"}>
            {i + 1 === current && <b style={{ width: `${Math.max(4, 100 * (partOf(of) ?? 0))}%` }} />}
          </i>
        );
      })}
    </span>
  );
}

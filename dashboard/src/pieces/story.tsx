// The story: a job's history, newest first, one sentence for each entry. Older entries are read when asked for.
import { useEffect, useState } from "preact/hooks";
import { get } from "../api";
import { type JobPage, stateOf, type StoryEntry, type StoryPage } from "../views";
import { say } from "./acts";
import { Card } from "./card";
import { Glyph } from "./glyph";
import { local, Time } from "./words";

function Entry({ one }: { one: StoryEntry }) {
  const isEnd = one.version === 0;
  return (
    <li class={isEnd ? "soft" : undefined}>
      <span class="mark">{isEnd ? <i /> : <Glyph state={one.loss ? "review" : stateOf(one.after)} size={15} />}</span>
      <h3>
        {local(one.sentence)} <Time at={one.at} />
      </h3>
      {one.notes?.map((note) => <p key={note}>{local(note)}</p>)}
      {one.loss && (
        <dl>
          {one.loss.why && <Pair name="Why" text={one.loss.why} />}
          {one.loss.kept && <Pair name="Kept" text={one.loss.kept} />}
          {one.loss.cut.length > 0 && <Pair name="Cut" text={one.loss.cut.join("; ")} />}
        </dl>
      )}
    </li>
  );
}

function Pair({ name, text }: { name: string; text: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{text}</dd>
    </div>
  );
}

export function Story({ view }: { view: JobPage }) {
  const [older, setOlder] = useState<StoryEntry[]>([]);
  useEffect(() => setOlder([]), [view.job.id]);
  const known = new Set(view.story.map((one) => one.version));
  const entries = [...view.story, ...older.filter((one) => !known.has(one.version))];
  const first = Math.min(...entries.filter((one) => one.version > 0).map((one) => one.version));
  const more = () =>
    get<StoryPage>(`/api/v1/jobs/${view.job.id}/story?before=${first}`).then(
      (found) => setOlder([...older, ...found.entries]),
      (error: unknown) => say(String(error), true),
    );
  const left = first > 1 ? first - 1 : 0;
  return (
    <Card title="Story" note="newest first">
      <ol class="story">
        {entries.map((one) => (
          <Entry key={one.version || `${one.at} ${one.sentence}`} one={one} />
        ))}
        {left > 0 && view.story_before > 0 && (
          <li class="soft">
            <span class="mark">
              <i />
            </span>
            <button type="button" class="link" onClick={() => void more()}>
              {`${left.toLocaleString("en")} earlier entries`}
            </button>
          </li>
        )}
      </ol>
    </Card>
  );
}

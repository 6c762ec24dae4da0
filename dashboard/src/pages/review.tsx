// Review: the inbox on the left, one thing on the right. A decision moves on to the next thing.
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get } from "../api";
import { Page, useView } from "../page";
import { Button, Empty } from "../pieces/card";
import { Decide } from "../pieces/decide";
import { go, pathOf } from "../router";
import type { ReviewItem, ReviewPage } from "../views";
import { Groups } from "../pieces/groups";
import { NeedRow } from "./overview";

const one = signal<{ id: string; item: ReviewItem } | null>(null);

export function Review({ id }: { id: string }) {
  const view = useView<ReviewPage>("view=review");
  const things = view?.lines ?? [];
  const at = Math.max(0, things.findIndex((thing) => thing.job === id));
  const chosen = things[at];
  const wanted = things.some((thing) => thing.job === id) ? id : (chosen?.job ?? "");
  const version = things.map((thing) => thing.kind + thing.job + thing.since).join();
  useEffect(() => {
    if (!wanted) return void (one.value = null);
    let current = true;
    get<ReviewItem>(`/api/v1/review/${encodeURIComponent(wanted)}`).then(
      (item) => current && (one.value = { id: wanted, item }),
      () => undefined,
    );
    return () => void (current = false);
  }, [wanted, version]);
  const step = (by: number) => things[at + by] && go(pathOf("review", things[at + by]!.job), true);
  useEffect(() => {
    const hear = (event: Event) => {
      const key = (event as CustomEvent<string>).detail;
      if (key === "k") step(-1);
      if (key === "a") document.querySelector<HTMLElement>(".decide input, .decide textarea, .decide select")?.focus();
      if (key === "Enter" && wanted) go(pathOf("jobs", wanted));
    };
    document.addEventListener("holdfast:key", hear);
    return () => document.removeEventListener("holdfast:key", hear);
  }, [version, at]);
  const shown = one.value?.id === wanted ? one.value.item : null;
  return (
    <Page title={view?.sentence.split(".")[0] ?? "Review"} crumbs="Review" sentence={view?.sentence} ready={!!view}>
      {view &&
        (things.length ? (
          <>
            <Groups version={version} />
            <div class="inbox">
            <ul class="card rows" aria-label="Inbox">
              {things.map((thing) => (
                <NeedRow key={thing.kind + thing.job + (thing.question ?? "")} of={thing} chosen={thing === chosen} />
              ))}
            </ul>
            <div class="card" aria-live="polite">
              {shown && <Decide key={wanted} questions={shown.questions} review={shown.review} bare />}
              {shown && (
                <div class="decide-foot">
                  {things.length > 1 && (
                    <Button keys="J" onClick={() => step(at + 1 < things.length ? 1 : -at)}>
                      Skip
                    </Button>
                  )}
                  <a class="btn" href={pathOf("jobs", wanted)}>
                    Open the job
                  </a>
                </div>
              )}
            </div>
            </div>
          </>
        ) : (
          <Empty>Nothing needs you.</Empty>
        ))}
    </Page>
  );
}

// What every page begins with: which view it watches, its sentence, and what is shown until the view is there.
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { link, missing, shown, watched } from "./live";
import { Loading } from "./pieces/card";
import { Sentence } from "./pieces/words";

/** Watch a view while the page is shown. Returns it once it has arrived. */
export function useView<T>(query: string): T | null {
  useEffect(() => {
    watched.value = query;
  }, [query]);
  const now = shown.value;
  return now?.of === query ? (now.view as T) : null;
}

interface PageProps {
  title: string;
  ready: boolean;
  crumbs?: ComponentChildren;
  acts?: ComponentChildren;
  sentence?: string;
  more?: string;
  children?: ComponentChildren;
}

export function Page({ crumbs, acts, sentence, more, title, children, ready }: PageProps) {
  useEffect(() => {
    document.title = `${title} · Holdfast`;
  }, [title]);
  if (missing.value)
    return (
      <main id="main" tabIndex={-1}>
        <h1 class="sentence">{missing.value}</h1>
      </main>
    );
  return (
    <main id="main" tabIndex={-1} aria-busy={!ready} class={link.value === "live" ? undefined : "stale"}>
      {(crumbs || acts) && (
        <div class="crumbs">
          <nav aria-label="Breadcrumbs">{crumbs}</nav>
          {acts}
        </div>
      )}
      {sentence && (
        <h1 class="sentence">
          <Sentence text={sentence} />
        </h1>
      )}
      {more && <p class="why">{more}</p>}
      {ready ? children : <Loading />}
    </main>
  );
}

// What every page begins with: which view it watches, its sentence, and what is shown until the view is there.
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { link, missing, shown, watched } from "./live";
import { Loading } from "./pieces/card";
import { local, Sentence, ZONE } from "./pieces/words";

/** Watch a view while the page is shown. Returns it once it has arrived. */
export function useView<T>(query: string): T | null {
  useEffect(() => {
    watched.value = query;
  }, [query]);
  const now = shown.value;
  return now?.of === query ? (now.view as T) : null;
}

/** A problem's words as a sentence. */
export const sentence = (words: string): string => words.charAt(0).toUpperCase() + words.slice(1) + (/[.?!]$/.test(words) ? "" : ".");

interface PageProps {
  title: string;
  ready: boolean;
  refused?: boolean;
  crumbs?: ComponentChildren;
  acts?: ComponentChildren;
  sentence?: string;
  more?: string;
  children?: ComponentChildren;
}

export function Page({ crumbs, acts, sentence: said, more, title, children, ready, refused }: PageProps) {
  useEffect(() => {
    document.title = `${title} · Holdfast`;
  }, [title]);
  if (missing.value && !refused)
    return (
      <main id="main" tabIndex={-1}>
        {crumbs && (
          <div class="crumbs">
            <nav aria-label="Breadcrumbs">{crumbs}</nav>
          </div>
        )}
        <h1 class="sentence">{sentence(missing.value)}</h1>
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
      {said && (
        <h1 class="sentence">
          <Sentence text={said} />
        </h1>
      )}
      {more && <p class="why">{local(more)}</p>}
      {ready ? children : <Loading />}
      {ready && <p class="zone">{`Times are ${ZONE}.`}</p>}
    </main>
  );
}

// The dashboard begins here: the frame, the page that the address names, the stream, the keys.
import { render } from "preact";
import { Notice, Side, Tabs } from "./frame";
import { listenToKeys } from "./keys";
import { startLive } from "./live";
import { Overlay } from "./palette";
import { Job } from "./pages/job";
import { Jobs } from "./pages/jobs";
import { Login } from "./pages/login";
import { Overview } from "./pages/overview";
import { Review } from "./pages/review";
import { Lifecycle, Queues, Schedules, Workers } from "./pages/tables";
import { Page } from "./page";
import { followLinks, place } from "./router";

function Shown() {
  const { page, id } = place.value;
  switch (page) {
    case "overview":
      return <Overview />;
    case "jobs":
      return id ? <Job key={id} id={id} /> : <Jobs />;
    case "review":
      return <Review id={id} />;
    case "queues":
      return <Queues id={id} />;
    case "workers":
      return <Workers id={id} />;
    case "schedules":
      return <Schedules />;
    case "lifecycle":
      return <Lifecycle />;
    default:
      return <Page title="Not found" sentence="There is no such page." ready />;
  }
}

function All() {
  if (place.value.page === "login") return <Login />;
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.querySelector<HTMLElement>("main")?.focus())}>
        Skip to the page
      </a>
      <div class="frame">
        <Side />
        <Shown />
      </div>
      <Tabs />
      <Notice />
      <Overlay />
    </>
  );
}

followLinks();
if (place.value.page !== "login") {
  startLive();
  listenToKeys();
}
render(<All />, document.getElementById("app")!);

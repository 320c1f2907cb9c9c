// A client of Duetime's HTTP API with nothing but fetch. Run the story at the end:
//
//     node duetime.ts http://127.0.0.1:7777

export type Lease = { id: string; born: number; attempt: number };
export type Delivery = { queue: string; lease: Lease; due_at: number; lease_until: number; body: unknown };
export type Moved = { event: string; id: string; born: number; due_at?: number };
export type PushOptions = { id?: string; delay?: string | number; ttl?: string; tries?: number; priority?: string };

/** What the server refused: `code` is for programs, `message` for people. */
export class DuetimeError extends Error {
  readonly code: string;
  readonly status: number;

  constructor(code: string, status: number, detail: string) {
    super(detail);
    this.code = code;
    this.status = status;
  }
}

const AGAIN = new Set([429, 502, 503, 504]);

export class Duetime {
  private readonly url: string;
  private readonly namespace: string;
  private readonly token: string;

  constructor(url: string, options: { namespace?: string; token?: string } = {}) {
    this.url = url.replace(/\/$/, "");
    this.namespace = options.namespace ?? "default";
    this.token = options.token ?? process.env.DUETIME_TOKEN ?? "";
  }

  queue(name: string): Queue {
    return new Queue(this, `/v1/queues/${encodeURIComponent(this.namespace)}/${encodeURIComponent(name)}`);
  }

  /** Sends a request; repeats it up to five times if `repeat` says that this is safe. */
  async send(method: string, path: string, message?: object, repeat = false): Promise<any> {
    for (let attempt = 1; ; attempt++) {
      const headers: Record<string, string> = { "content-type": "application/json" };
      if (this.token) headers.authorization = `Bearer ${this.token}`;
      try {
        const body = message === undefined ? undefined : JSON.stringify(message);
        const answer = await fetch(this.url + path, { method, headers, body });
        const document: any = await answer.json();
        if (answer.ok) return document;
        if (!repeat || attempt === 5 || !AGAIN.has(answer.status)) {
          throw new DuetimeError(document.code, answer.status, document.detail);
        }
      } catch (error) {
        if (error instanceof DuetimeError || !repeat || attempt === 5) throw error;
      }
      await new Promise((done) => setTimeout(done, 100 * 2 ** attempt));
    }
  }
}

export class Queue {
  private readonly client: Duetime;
  private readonly path: string;

  constructor(client: Duetime, path: string) {
    this.client = client;
    this.path = path;
  }

  /** Adds a job. With an id, repeating the push keeps the first job (event "kept"). */
  async push(body: object | string, options: PushOptions = {}): Promise<Moved> {
    const message = { ...options, id: options.id ?? crypto.randomUUID(), body };
    return (await this.client.send("POST", `${this.path}/jobs`, message, true)).moved;
  }

  /** Adds a job that is due after `delay`, such as "10m" or a number of seconds. */
  later(delay: string | number, body: object | string, options: PushOptions = {}): Promise<Moved> {
    return this.push(body, { ...options, delay });
  }

  /** Leases a job; waits for one to fall due. Null if none came in time. */
  async reserve(wait = "30s", ttr = "60s"): Promise<Delivery | null> {
    const answer = await this.client.send("POST", `${this.path}/reserve`, { wait, ttr });
    return answer.deliveries[0] ?? null;
  }

  async ack(lease: Lease): Promise<void> {
    await this.client.send("POST", `${this.path}/ack`, { lease }, true);
  }

  /** Gives a job back, to be delivered again after `delay`. */
  async release(lease: Lease, delay: string | number = 0, error = ""): Promise<void> {
    await this.client.send("POST", `${this.path}/release`, { lease, delay, error });
  }

  /** Renews the lease; returns when it ends, in epoch milliseconds. */
  async extend(lease: Lease, ttr = "60s"): Promise<number> {
    return (await this.client.send("POST", `${this.path}/extend`, { lease, ttr })).lease_until;
  }

  async cancel(id: string): Promise<Moved> {
    return (await this.client.send("DELETE", `${this.path}/jobs/${encodeURIComponent(id)}`)).moved;
  }

  async counts(): Promise<{ delayed: number; ready: number; leased: number; dead: number }> {
    return (await this.client.send("GET", this.path)).counts;
  }
}

async function story(url: string): Promise<void> {
  const mail = new Duetime(url).queue("typescript");
  console.log("push", (await mail.later("100ms", { to: "ann" }, { id: "welcome-ann" })).event);
  console.log("push again", (await mail.later("100ms", { to: "ann" }, { id: "welcome-ann" })).event);
  await mail.later("1h", { to: "bob" }, { id: "welcome-bob" });
  console.log("cancel", (await mail.cancel("welcome-bob")).event);
  try {
    await mail.cancel("welcome-bob");
  } catch (error) {
    console.log("cancel again", (error as DuetimeError).code);
  }
  for (let job = await mail.reserve(); job; job = await mail.reserve("200ms")) {
    const early = Date.now() < job.due_at;
    console.log("work", job.lease.id, "attempt", job.lease.attempt, JSON.stringify(job.body), early ? "early" : "due");
    if (job.lease.attempt === 1) await mail.release(job.lease, "50ms", "the mail server is busy");
    else await mail.ack(job.lease);
  }
  const { delayed, ready, leased, dead } = await mail.counts();
  console.log("left", delayed + ready + leased + dead);
}

if (process.argv[2]) await story(process.argv[2]);

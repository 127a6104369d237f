/**
 * The client of sparseagg's HTTP gateway, for browsers and Node 18 or later. No dependencies.
 *
 *   import { Client } from "./sparseagg.js";
 *   const client = new Client("http://127.0.0.1:8003");
 *   const round = await client.createRound({ tensors: [{ name: "w", dtype: "float32", numRows: 50_000 }] });
 *   await client.submit(round.name, "browser-7", { w: { keys: new Uint32Array([3, 9]), values: new Float32Array([1, 2]) } });
 *   await client.closeRound(round.name);
 *   await client.waitRound(round.name);
 *   const { w } = await client.result(round.name);   // { keys, values, counts, weights, … }
 *
 * Calls that the server can repeat are tried again by themselves when it is busy or restarts. Submissions are
 * idempotent: sent again under the same submission id they count once.
 *
 * Messages are those of proto/sparseagg/v1 in the JSON mapping of Protocol Buffers: 64-bit integers are strings in
 * answers, and may be numbers or strings in requests.
 *
 * @module
 */

/** @typedef {Float32Array | Float64Array | Int32Array | BigInt64Array | Uint32Array | BigUint64Array | Uint16Array} Values */
/** @typedef {Uint32Array | BigUint64Array | number[]} Keys whole numbers; number[] up to 2^53 - 1 */
/**
 * @typedef {object} TensorUpdate
 * @property {Keys} [keys] of the rows, in any order; left out for a dense tensor
 * @property {Values | null} [values] row-major, `rowWidth` values for each key; null for a UNION
 * @property {string} [valueEncoding] such as "BFLOAT16", if the values are packed already. Default: by the array's type
 */
/**
 * @typedef {object} TensorResult
 * @property {Uint32Array | BigUint64Array} keys ascending; of a dense result all of them
 * @property {Values | Uint8Array | null} values row-major; Uint16Array for float16 and bfloat16; null for a UNION
 * @property {Uint32Array | null} counts submissions for each key, if the round returns them
 * @property {Float64Array | null} weights sum of weights for each key, if the round returns them
 * @property {Float64Array | null} moments row-major sums of weighted squares, if the round returns them
 * @property {number} rowWidth values of a row
 * @property {object} summary the server's TensorSummary
 */
/** @typedef {{signal?: AbortSignal}} CallOptions */
/**
 * @typedef {object} NewTask a TaskSpec, with an id
 * @property {string} [taskId] default: a random one
 * @property {Uint8Array | string} [payload] for the worker
 * @property {string} [round] "rounds/{id}": completing the task needs a submission to it
 * @property {string[]} [labels] what a worker must have
 * @property {number} [priority]
 * @property {number} [maxAttempts]
 * @property {string} [deadline] such as "60s"
 */
/** @typedef {object} Task the server's Task; `payload` and `result` are Uint8Array */

const DEFAULT_CHUNK_BYTES = 1 << 20;
const BLOCK_KEYS = 128;
const FIRST_DELAY_MS = 100;
const MAX_DELAY_MS = 5000;
const TRANSIENT = new Set(["UNAVAILABLE", "UNREACHABLE"]);

/** An error of the server, with the code of gRPC. */
export class SparseaggError extends Error {
  /**
   * @param {string} code such as "INVALID_ARGUMENT"; "UNREACHABLE" if there was no answer
   * @param {string} message the server's text
   * @param {number} status of HTTP; 0 if there was no answer
   * @param {{retryDelayMs?: number | null, reason?: string, metadata?: Record<string, string>}} [details] a delay that the
   *   server suggests for a lack that passes by itself; why, such as "WRONG_ROUND_STATE", and what belongs to that
   */
  constructor(code, message, status, { retryDelayMs = null, reason = "", metadata = {} } = {}) {
    super(`${code}: ${message}`);
    this.name = "SparseaggError";
    this.code = code;
    this.status = status;
    this.retryDelayMs = retryDelayMs;
    this.reason = reason;
    this.metadata = metadata;
  }
}

/** Calls of one server. Any number may be under way at once. An option that a call does not have is a TypeError. */
export class Client {
  /**
   * @param {string} [url] of the gateway; default: the origin of the page
   * @param {object} [options]
   * @param {string} [options.token] bearer token
   * @param {boolean} [options.insecureToken] sends the token also over http:// to another machine, where everybody on the
   *   way can read it; default false
   * @param {string} [options.tenant] another tenant than the token's, for admins
   * @param {number} [options.retries] attempts after the first for calls that may pass; default 6
   * @param {typeof fetch} [options.fetch] default: the global one
   */
  constructor(url = "", { token, insecureToken = false, tenant, retries = 6, fetch = globalThis.fetch, ...unknown } = {}) {
    refuseUnknown(unknown);
    this.url = url.replace(/\/+$/, "");
    this.token = token;
    this.insecureToken = insecureToken;
    this.tenant = tenant;
    this.retries = retries;
    this._fetch = fetch.bind(globalThis);
    this._homes = new Map(); // clients of the other servers of a cluster, by URL
    this._hasReached = false; // a server of HTTP
    const { protocol, hostname } = addressOf(this.url);
    this._isLocal = /^(localhost\.?|127\.\d+\.\d+\.\d+|\[::1\])$/.test(hostname);
    if (token && protocol === "http:" && !this._isLocal && !insecureToken) {
      const text = `everybody on the way to ${url || hostname} could read the token: use https://`;
      throw new SparseaggError("INVALID_ARGUMENT", `${text}; insecureToken: true sends it nevertheless`, 0);
    }
  }

  /**
   * Calls about a client's submission go to the client's home server, in a cluster's round. A page must not follow a
   * redirection to another origin by itself: the browser would send "Origin: null", and no token. So the first call
   * that is redirected asks the server for the round's list of homes, and goes there.
   * @param {string} round @param {string} clientId @param {(client: Client) => Promise<T>} call @template T
   * @returns {Promise<T>}
   */
  async _atHome(round, clientId, call) {
    try {
      return await call(this);
    } catch (error) {
      if (error.code !== "HOME_ELSEWHERE") throw error;
      const { spec } = await this.getRound(round);
      const servers = spec.cluster?.servers ?? [];
      const url = servers.length > 0 && servers[homeOf(clientId, servers.length)].httpUrl;
      if (!url || clientId === "") throw error;
      return call(this._of(url));
    }
  }

  /** Returns the client of another server of a cluster, with the same credentials. @param {string} url */
  _of(url) {
    if (!this._homes.has(url)) {
      const { token, insecureToken, tenant, retries, _fetch: fetch } = this;
      const home = new Client(url, { token, insecureToken, tenant, retries, fetch });
      if (home._isLocal && !this._isLocal) {
        const text = `the round has a server at ${url}, on this machine, but the first server is not on it`;
        throw new SparseaggError("FAILED_PRECONDITION", text, 0);
      }
      this._homes.set(url, home);
    }
    return this._homes.get(url);
  }

  // ---- the server and its rounds ----

  /**
   * @param {CallOptions & {withActivity?: boolean}} [options] withActivity: with what the server has done and its memory
   * @returns {Promise<object>} ServerInfo
   */
  info({ withActivity = false, ...options } = {}) {
    return this._json("GET", withActivity ? "/v1/info?with_activity=true" : "/v1/info", options);
  }

  /**
   * Opens a round.
   * @param {object} spec RoundSpec
   * @param {CallOptions & {roundId?: string}} [options] roundId: [A-Za-z0-9_][A-Za-z0-9._-]{0,127}; default: a random one
   * @returns {Promise<object>} Round
   */
  createRound(spec, { roundId = randomId(), ...options } = {}) {
    return this._json("POST", "/v1/rounds", options, { roundId, spec });
  }

  /** @param {string} round @param {CallOptions} [options] @returns {Promise<object>} Round */
  getRound(round, options) {
    return this._json("GET", roundPath(round), options);
  }

  /** Yields the rounds, oldest first. @param {CallOptions} [options] @returns {AsyncGenerator<object>} */
  async *listRounds(options) {
    yield* this._list("/v1/rounds", "rounds", options);
  }

  /**
   * Waits until the round has ended. One request lasts up to 20 s, so that proxies do not cut it.
   * @param {string} round
   * @param {CallOptions & {timeoutMs?: number}} [options] timeoutMs: default: without end
   * @returns {Promise<object>} Round, which may not have ended if the time is over
   */
  async waitRound(round, { timeoutMs = Infinity, ...options } = {}) {
    const end = Date.now() + timeoutMs;
    for (;;) {
      const left = Math.max(0, Math.min(end - Date.now(), 20_000)) / 1000;
      const state = await this._json("GET", `${roundPath(round)}:wait?timeout=${left.toFixed(3)}s`, options);
      if (hasEnded(state) || Date.now() >= end) return state;
    }
  }

  /**
   * Freezes the submissions of an open round without merging them.
   * @param {string} round @param {CallOptions} [options] @returns {Promise<object>} Round
   */
  sealRound(round, options) {
    return this._json("POST", `${roundPath(round)}:seal`, options, {});
  }

  /**
   * @param {string} round
   * @param {CallOptions & {onlyClientIds?: string[], clientWeights?: {clientId: string, weight: number}[]}} [options]
   *   only the submissions of these clients count; or, for a sealed round, a factor for each client's weight
   * @returns {Promise<object>} Round
   */
  closeRound(round, { onlyClientIds = [], clientWeights = [], ...options } = {}) {
    const weights = clientWeights.length > 0 ? { clientWeights } : {}; // unknown to older servers
    return this._json("POST", `${roundPath(round)}:close`, options, { onlyClientIds, ...weights });
  }

  /** @param {string} round @param {string} [reason] @param {CallOptions} [options] @returns {Promise<object>} Round */
  cancelRound(round, reason = "", options = undefined) {
    return this._json("POST", `${roundPath(round)}:cancel`, options, { reason });
  }

  /** @param {string} round @param {CallOptions} [options] @returns {Promise<object>} */
  deleteRound(round, options) {
    return this._json("DELETE", roundPath(round), options);
  }

  // ---- streams ----

  /**
   * Opens a stream: its versions are the rounds "{stream}.v1", "{stream}.v2", … of the next `buffer` submissions each.
   * @param {object} spec StreamSpec: round, buffer, stalenessWeights, maxInterval, onePerClient
   * @param {CallOptions & {streamId?: string}} [options] streamId: [A-Za-z0-9_][A-Za-z0-9._-]{0,107}; default: a random
   *   one
   * @returns {Promise<object>} Stream
   */
  createStream(spec, { streamId = randomId(), ...options } = {}) {
    return this._json("POST", "/v1/streams", options, { streamId, spec });
  }

  /** @param {string} stream @param {CallOptions} [options] @returns {Promise<object>} Stream */
  getStream(stream, options) {
    return this._json("GET", streamPath(stream), options);
  }

  /** Yields the streams, by id. @param {CallOptions} [options] @returns {AsyncGenerator<object>} */
  async *listStreams(options) {
    yield* this._list("/v1/streams", "streams", options);
  }

  /**
   * Ends the version that is being filled, if it has a submission.
   * @param {string} stream
   * @param {CallOptions & {version?: number | string}} [options] version: only if this one is being filled, so that the
   *   call is safe to repeat
   * @returns {Promise<object>} Stream
   */
  cutStream(stream, { version = 0, ...options } = {}) {
    return this._json("POST", `${streamPath(stream)}:cut`, options, { version: `${version}` });
  }

  /** Deletes a stream with its versions. @param {string} stream @param {CallOptions} [options] @returns {Promise<object>} */
  deleteStream(stream, options) {
    return this._json("DELETE", streamPath(stream), options);
  }

  /**
   * Yields the versions after `after`, in order, as they end; without end, unless timeoutMs passes without one.
   * @param {string} stream
   * @param {CallOptions & {after?: number | string, timeoutMs?: number}} [options] timeoutMs: default: without end
   * @returns {AsyncGenerator<object>} StreamVersion; its result is that of the round `version.round`
   */
  async *watchVersions(stream, { after = 0, timeoutMs = Infinity, ...options } = {}) {
    let last = `${after}`;
    for (let end = Date.now() + timeoutMs; ; ) {
      const left = Math.max(0, Math.min(end - Date.now(), 20_000)) / 1000;
      const query = new URLSearchParams({ after_version: last, timeout: `${left.toFixed(3)}s` });
      const { versions = [] } = await this._json("GET", `${streamPath(stream)}:watch?${query}`, options);
      for (const version of versions) {
        yield version;
        last = version.version;
      }
      if (versions.length > 0) end = Date.now() + timeoutMs;
      else if (Date.now() >= end) return;
    }
  }

  // ---- submissions ----

  /**
   * Sends an update in chunks and commits it: it counts completely or not at all. An upload that was cut goes on where
   * it stopped if the same update is sent again under the same submission id.
   *
   * @param {string} round or a stream, as "streams/{id}" or its id, with baseVersion
   * @param {string} clientId 1 to 256 bytes of UTF-8 without control characters; "" for the name of the token
   * @param {Record<string, TensorUpdate>} update by tensor
   * @param {object} [options]
   * @param {number} [options.weight] required if the round weights submissions
   * @param {number | string} [options.baseVersion] of a stream: the version that the update was computed from
   * @param {string} [options.submissionId] names this content; default: a random one
   * @param {boolean} [options.pack] pack ascending keys; default true. The result is the same
   * @param {number} [options.chunkBytes] about the size of a request; default 1 MiB
   * @param {(sentBytes: number, allBytes: number) => void} [options.onProgress]
   * @param {AbortSignal} [options.signal]
   * @returns {Promise<object>} Submission; of a stream with its place, streamCommit
   */
  async submit(round, clientId, update, options = {}) {
    const { weight, baseVersion, submissionId, pack = true, chunkBytes = DEFAULT_CHUNK_BYTES, ...others } = options;
    const { onProgress, signal, ...unknown } = others;
    refuseUnknown(unknown);
    const tensors = Object.entries(update).map(([name, tensor]) => checkedTensor(name, tensor));
    const pieces = tensors.flatMap((tensor) => cut(tensor, chunkBytes));
    if (pieces.length === 0) pieces.push({ bytes: 0 });
    const chunks = pieces.map((piece, sequence) => () => encodeChunk(piece, sequence, pieces.length, pack, weight));
    // No other upload has an id that was drawn at random.
    const ids = { client_id: clientId, submission_id: submissionId ?? randomId() };
    if (submissionId !== undefined) ids.upload_tag = await tagOf(chunks);
    const ends = [0]; // bytes before each piece, and of all
    for (const piece of pieces) ends.push(ends[ends.length - 1] + piece.bytes);
    return this._atHome(round, clientId, async (home) => {
      for (let sequence = 0; sequence < chunks.length; ) {
        const { fields, body } = chunks[sequence]();
        if (sequence === 0 && baseVersion !== undefined) fields.base_version = baseVersion;
        const path = `${roundPath(round)}/chunks?${new URLSearchParams({ ...ids, ...fields })}`;
        const response = await home._call("POST", path, { signal }, body, "application/octet-stream");
        const { nextSequence, committed } = await response.json(); // of an upload that goes on, the first that is missing
        sequence = committed ? chunks.length : Math.max(sequence + 1, Number(nextSequence));
        onProgress?.(ends[sequence], ends[chunks.length]);
      }
      const message = { clientId, submissionId: ids.submission_id, uploadTag: ids.upload_tag };
      return home._json("POST", `${roundPath(round)}/submissions`, { signal }, message);
    });
  }

  /** Yields the committed submissions in the order of client ids. @param {string} round @param {CallOptions} [options] */
  async *listSubmissions(round, options) {
    yield* this._list(`${roundPath(round)}/submissions`, "submissions", options);
  }

  /** @param {string} round @param {string} clientId @param {CallOptions} [options] @returns {Promise<boolean>} */
  async withdraw(round, clientId, options) {
    const query = new URLSearchParams({ client_id: clientId });
    const path = `${roundPath(round)}/submissions?${query}`;
    return (await this._atHome(round, clientId, (home) => home._json("DELETE", path, options))).withdrawn;
  }

  // ---- results ----

  /**
   * Reads the result of a round that is DONE, or of a cluster's round that is closed. The latter is in the sparse layout:
   * keys without a submission are left out, also where the spec asks for a dense result.
   * @param {string} round
   * @param {CallOptions & {tensors?: string[], begin?: number, end?: number, pageBytes?: number}} [options] tensors:
   *   default all; begin, end: range of keys
   * @returns {Promise<Record<string, TensorResult>>} by tensor
   */
  async result(round, { tensors, begin = 0, end = 0, pageBytes = 0, ...options } = {}) {
    const names = tensors ?? (await this.getRound(round, options)).spec.tensors.map((tensor) => tensor.name);
    const results = {};
    for (const tensor of names) {
      const query = new URLSearchParams({
        tensor,
        "range.begin": `${begin}`,
        "range.end": `${end}`,
        max_page_bytes: `${pageBytes}`,
        "format.key_encodings": "DELTA_BITPACKED",
      });
      const pages = [];
      do {
        let response;
        try {
          response = await this._call("GET", `${roundPath(round)}/result?${query}`, {
            ...options,
            accept: "application/octet-stream",
          });
        } catch (error) {
          if (error.code !== "FAILED_PRECONDITION") throw error;
          return this._clusterResult(round, names, { begin, end, ...options }, error);
        }
        pages.push(decodePage(await response.arrayBuffer()));
        query.set("page_token", pages[pages.length - 1].nextPageToken);
      } while (query.get("page_token"));
      results[tensor] = joinPages(pages);
    }
    return results;
  }

  /** Reads the result of a cluster's round from the servers that have its ranges; throws `error` if there is none. */
  async _clusterResult(round, names, { begin, end, ...options }, error) {
    const { spec } = await this.getRound(round, options);
    if (!spec.cluster) throw error;
    const { ranges } = await this._range(round, {}, options).catch((cause) => {
      throw cause.code === "NOT_FOUND" ? error : cause; // not closed, or its result_ttl is over
    });
    const { parts } = JSON.parse(ranges);
    const { index = 0, servers } = spec.cluster;
    const results = {};
    for (const name of names) {
      const tensor = spec.tensors.find((each) => each.name === name);
      if (!tensor) throw new SparseaggError("INVALID_ARGUMENT", `the round has no tensor "${name}"`, 400);
      const pages = [];
      // Numbers are rounded beyond 2^53: a range too many may be read.
      for (const part of parts.filter((each) => each.tensor === name)) {
        if ((part.end !== null && part.end < begin) || (end !== 0 && part.begin > end)) continue;
        const url = servers[part.server].httpUrl;
        if (part.server !== index && !url) {
          const text = `a range of "${name}" is on ${servers[part.server].address}, which has no HTTP gateway`;
          throw new SparseaggError("FAILED_PRECONDITION", text, 400);
        }
        const reader = part.server === index ? this : this._of(url);
        for (const at of part.blocks) pages.push(await reader._range(round, { tensor: name, begin: at }, options));
      }
      results[name] = rowsBetween(tensor, pages, begin, end);
    }
    return results;
  }

  /** Reads a range of a cluster's result from this server; without a tensor the list of all ranges. */
  async _range(round, query, options) {
    const path = `${roundPath(round)}/ranges?${new URLSearchParams(query)}`;
    const response = await this._call("GET", path, { ...options, accept: "application/octet-stream" });
    return decodePage(await response.arrayBuffer());
  }

  /** Yields the models, by id. @param {CallOptions} [options] @returns {AsyncGenerator<object>} */
  async *listModels(options) {
    yield* this._list("/v1/models", "models", options);
  }

  /** Returns a model of the server. @param {string} name "models/{id}" @returns {Model} */
  model(name) {
    return new Model(this, name);
  }

  // ---- certificates ----

  /**
   * Reads the certificate of a round that has ended. Not verified: verifyReceipt does that.
   * @param {string} round @param {CallOptions} [options]
   * @returns {Promise<{envelope: string, statement: object}>} a DSSE envelope, and the in-toto statement in it
   */
  async certificate(round, options) {
    const answer = await this._json("GET", `${roundPath(round)}/certificate`, options);
    const envelope = new TextDecoder().decode(decodeBase64(answer.envelope));
    return { envelope, statement: JSON.parse(new TextDecoder().decode(decodeBase64(JSON.parse(envelope).payload))) };
  }

  /**
   * Reads what the server has signed about a client's submission. Keep it as soon as you have submitted, as evidence of
   * a drop; after the end it has the proof, too, that the certificate counts the submission.
   * @param {string} round @param {string} clientId
   * @param {CallOptions & {submissionId?: string}} [options] submissionId: needed if the client has several submissions,
   *   in a version of a stream
   * @returns {Promise<object>} a SubmissionReceipt
   */
  async receipt(round, clientId, { submissionId, ...options } = {}) {
    const query = new URLSearchParams({ client_id: clientId });
    if (submissionId) query.set("submission_id", submissionId);
    return this._atHome(round, clientId, (home) => home._json("GET", `${roundPath(round)}/receipt?${query}`, options));
  }

  // ---- tasks ----

  /**
   * Creates tasks, all or none.
   * @param {NewTask[]} tasks
   * @param {CallOptions & {owner?: string}} [options]
   * @returns {Promise<string[]>} their names
   */
  async createTasks(tasks, { owner = "", ...options } = {}) {
    const message = {
      owner,
      tasks: tasks.map(({ taskId = randomId(), payload, ...spec }) => ({
        taskId,
        spec: { ...spec, payload: toBase64(payload) },
      })),
    };
    return (await this._json("POST", "/v1/tasks", options, message)).names;
  }

  /**
   * Leases a task, and waits for one.
   * @param {string} clientId
   * @param {CallOptions & {leaseId?: string, labels?: string[], leaseMs?: number, timeoutMs?: number}} [options]
   * @returns {Promise<Task | null>} null if none came in time
   */
  async leaseTask(clientId, { leaseId = randomId(), labels = [], leaseMs, timeoutMs = 20_000, ...options } = {}) {
    const message = { clientId, leaseId, labels, timeout: seconds(timeoutMs) };
    if (leaseMs !== undefined) message.leaseDuration = seconds(leaseMs);
    const { task } = await this._json("POST", "/v1/tasks:lease", options, message);
    return task ? withBytes(task) : null;
  }

  /** Sets the end of a lease to `leaseMs` from now. @param {Task} task @param {number} leaseMs @param {CallOptions} [options] */
  async extendLease(task, leaseMs, options) {
    const message = { ...leaseOf(task), leaseDuration: seconds(leaseMs) };
    return withBytes(await this._json("POST", `${taskPath(task.name)}:extend`, options, message));
  }

  /**
   * @param {Task} task that leaseTask returned
   * @param {CallOptions & {submissionId?: string, result?: Uint8Array | string}} [options] submissionId: needed if the
   *   task has a round
   */
  async completeTask(task, { submissionId = "", result, ...options } = {}) {
    const message = { ...leaseOf(task), submissionId, result: toBase64(result) };
    return withBytes(await this._json("POST", `${taskPath(task.name)}:complete`, options, message));
  }

  /**
   * @param {Task} task that leaseTask returned
   * @param {string} reason
   * @param {CallOptions & {retry?: boolean}} [options] retry: offer the task to other workers; default true
   */
  async failTask(task, reason, { retry = true, ...options } = {}) {
    return withBytes(await this._json("POST", `${taskPath(task.name)}:fail`, options, { ...leaseOf(task), reason, retry }));
  }

  /** @param {string} name @param {CallOptions} [options] @returns {Promise<Task>} */
  async getTask(name, options) {
    return withBytes(await this._json("GET", taskPath(name), options));
  }

  /**
   * Yields the tasks, oldest first, without payloads.
   * @param {CallOptions & {state?: string, round?: string}} [options] state: such as "OPEN"
   * @returns {AsyncGenerator<Task>}
   */
  async *listTasks({ state = "", round = "", ...options } = {}) {
    const filter = {};
    if (state) filter.state = state;
    if (round) filter.round = round;
    for await (const task of this._list("/v1/tasks", "tasks", options, filter)) yield withBytes(task);
  }

  /** @param {string[]} names @param {string} [reason] @param {CallOptions} [options] @returns {Promise<number>} */
  async cancelTasks(names, reason = "", options = undefined) {
    return Number((await this._json("POST", "/v1/tasks:cancel", options, { names, reason })).numCancelled);
  }

  /**
   * Works on tasks until `signal` aborts: leases one, runs the handler, completes the task, and renews the lease
   * meanwhile. A handler that throws gives the task back.
   *
   * @param {string} clientId
   * @param {(task: Task, signal: AbortSignal) => Promise<{submissionId?: string, result?: Uint8Array | string} | void>} handler
   *   its signal aborts when the lease is lost
   * @param {object} [options]
   * @param {AbortSignal} [options.signal]
   * @param {string[]} [options.labels] what this worker has
   * @param {number} [options.leaseMs] default 60 s
   * @param {(event: "waiting" | "leased" | "completed" | "failed", task?: Task, error?: Error) => void} [options.onEvent]
   */
  async work(clientId, handler, { signal, labels = [], leaseMs = 60_000, onEvent, ...unknown } = {}) {
    refuseUnknown(unknown);
    while (!signal?.aborted) {
      onEvent?.("waiting");
      let task;
      try {
        task = await this.leaseTask(clientId, { labels, leaseMs, signal });
      } catch (error) {
        if (signal?.aborted) return;
        throw error;
      }
      if (task === null) continue;
      onEvent?.("leased", task);
      const lost = new AbortController();
      const abort = () => lost.abort(signal.reason);
      signal?.addEventListener("abort", abort);
      const renewal = setInterval(() => {
        this.extendLease(task, leaseMs).catch((error) => {
          if (error.code === "FAILED_PRECONDITION" || error.code === "NOT_FOUND") lost.abort(error);
        });
      }, leaseMs / 3);
      try {
        const { submissionId, result } = (await handler(task, lost.signal)) ?? {};
        await this.completeTask(task, { submissionId, result });
        onEvent?.("completed", task);
      } catch (error) {
        await this.failTask(task, `${error?.message ?? error}`.slice(0, 200)).catch(() => {}); // the lease may be over
        onEvent?.("failed", task, error);
      } finally {
        clearInterval(renewal);
        signal?.removeEventListener("abort", abort);
      }
    }
  }

  // ---- requests ----

  async *_list(path, member, options, filter = {}) {
    let token = "";
    do {
      const query = new URLSearchParams({ ...filter, page_token: token });
      const page = await this._json("GET", `${path}?${query}`, options);
      yield* page[member];
      token = page.nextPageToken;
    } while (token);
  }

  async _json(method, path, options, message = undefined) {
    const body = message === undefined ? undefined : JSON.stringify(message);
    const response = await this._call(method, path, { ...options, accept: "application/json" }, body, "application/json");
    return response.json();
  }

  /** Sends a request until it has an answer, an error that stays, or no attempts left. */
  async _call(method, path, { signal, accept, ...unknown } = {}, body = undefined, type = undefined) {
    refuseUnknown(unknown);
    const headers = { accept: accept ?? "application/json" };
    if (body !== undefined) headers["content-type"] = type;
    if (this.token) headers.authorization = `Bearer ${this.token}`;
    if (this.tenant) headers["sparseagg-tenant"] = this.tenant;
    const redirect = /\/(chunks|submissions|receipt)(\?|$)/.test(path) ? "manual" : "follow"; // see _atHome
    for (let attempt = 0; ; ++attempt) {
      let error;
      let isFinal = false;
      try {
        const response = await this._fetch(this.url + path, { method, headers, body, signal, redirect });
        this._hasReached = true;
        if (response.ok) return response;
        if (redirect === "manual" && (response.type === "opaqueredirect" || response.status === 307)) {
          const text = "another server of the round's cluster is the client's home";
          error = new SparseaggError("HOME_ELSEWHERE", text, 307);
        } else {
          error = await errorOf(response);
        }
      } catch (cause) {
        if (signal?.aborted) throw cause;
        const obstacle = obstacleOf(cause, this.url || "the server");
        error = new SparseaggError("UNREACHABLE", obstacle.text, 0);
        isFinal = obstacle.isFinal || (obstacle.isClosed && !this._hasReached && attempt > 0);
      }
      if (isFinal || attempt >= this.retries || (!TRANSIENT.has(error.code) && error.retryDelayMs === null)) throw error;
      await delay(Math.max(error.retryDelayMs ?? 0, Math.min(FIRST_DELAY_MS * 2 ** attempt, MAX_DELAY_MS)), signal);
    }
  }
}

const MAX_READ_KEYS = 4096;

/** A model of a server (models.proto), of which a client reads the rows that it needs. */
export class Model {
  /** @param {Client} client @param {string} name */
  constructor(client, name) {
    this._client = client;
    this._path = `/v1/models/${encodeURIComponent(name.replace(/^models\//, ""))}`;
  }

  /** @param {CallOptions} [options] @returns {Promise<object>} v1.Model */
  info(options) {
    return this._client._json("GET", this._path, options);
  }

  /**
   * Waits until the model has a later version.
   * @param {number | string} after @param {CallOptions & {timeoutMs?: number}} [options] timeoutMs: default: without end
   * @returns {Promise<object>} v1.Model, of the version `after` if the time is over
   */
  async wait(after, { timeoutMs = Infinity, ...options } = {}) {
    const end = Date.now() + timeoutMs;
    for (;;) {
      const left = Math.max(0, Math.min(end - Date.now(), 20_000)) / 1000;
      const query = new URLSearchParams({ after_version: `${after}`, timeout: `${left.toFixed(3)}s` });
      const model = await this._client._json("GET", `${this._path}?${query}`, options);
      if (BigInt(model.version ?? 0) > BigInt(after) || Date.now() >= end) return model;
    }
  }

  /**
   * Reads rows at one version. Untouched rows have their initial values.
   * @param {string} tensor @param {Keys} keys in any order
   * @param {CallOptions & {version?: number | string, since?: number | string}} [options] version: default: the newest;
   *   since: only the rows that later versions than this one have changed
   * @returns {Promise<{version: string, keys: Keys, values: Values}>} the keys of the rows that were read, and the rows
   */
  async readRows(tensor, keys, { version, since, ...options } = {}) {
    const parts = [];
    for (let begin = 0; begin === 0 || begin < keys.length; begin += MAX_READ_KEYS) {
      const part = keys.slice(begin, begin + MAX_READ_KEYS);
      const sent = bytesOf(BigUint64Array.from(part, BigInt));
      const message = { tensor, version, since, withInitial: true, keys: { keyEncoding: "KEY_ENCODING_U64", keys: toBase64(sent) } };
      const accept = "application/octet-stream";
      const type = "application/json";
      const path = `${this._path}/rows`;
      const response = await this._client._call("POST", path, { ...options, accept }, JSON.stringify(message), type);
      const page = decodePage(await response.arrayBuffer());
      version = page.version;
      const unchanged = fromBase64(page.unchanged);
      parts.push({ keys: part.filter((_, i) => !((unchanged[i >> 3] >> (i & 7)) & 1)), values: page.values });
    }
    const joined = Array.isArray(keys) ? parts.flatMap((part) => part.keys) : concat(parts.map((part) => part.keys));
    return { version, keys: joined, values: concat(parts.map((part) => part.values)) };
  }
}

const BITS = (1n << 64n) - 1n;

/**
 * Returns the index of a client's home server: the same as in service/rounds/round_config.cc.
 * @param {string} clientId @param {number} numServers @returns {number}
 */
export function homeOf(clientId, numServers) {
  let hash = 0xcbf29ce484222325n; // FNV-1a
  for (const byte of new TextEncoder().encode(clientId)) hash = ((hash ^ BigInt(byte)) * 0x100000001b3n) & BITS;
  let home = 0;
  let most = -1n;
  for (let index = 0; index < numServers; ++index) {
    let score = hash ^ ((BigInt(index + 1) * 0x9e3779b97f4a7c15n) & BITS);
    score = ((score ^ (score >> 33n)) * 0xff51afd7ed558ccdn) & BITS; // the finalizer of MurmurHash3
    score = ((score ^ (score >> 33n)) * 0xc4ceb9fe1a85ec53n) & BITS;
    score ^= score >> 33n;
    if (score > most) [home, most] = [index, score];
  }
  return home;
}

/** @param {object} round Round @returns {boolean} */
export function hasEnded(round) {
  return ["ROUND_STATE_DONE", "ROUND_STATE_FAILED", "ROUND_STATE_CANCELLED"].includes(round.state);
}

/**
 * Verifies with WebCrypto (browsers, Node 20) that a certificate counts the submission of a receipt. docs/certificates.md
 * has the formats. Compare the leaf with what you have sent, if you do not trust the server to have received it.
 * @param {object} receipt of Client.receipt
 * @param {string} envelope of Client.certificate
 * @param {string} publicKeys trusted Ed25519 keys in PEM, one or more
 * @returns {Promise<{leafIndex: number, numSubmissions: number, statement: object}>}
 * @throws {SparseaggError} code "UNVERIFIED": something does not fit; the message says which
 */
export async function verifyReceipt(receipt, envelope, publicKeys) {
  const keys = await importKeys(publicKeys);
  const statement = await openEnvelope(envelope, "application/vnd.in-toto+json", keys, "certificate");
  const { predicateType, predicate, subject } = statement;
  if (predicateType !== "urn:sparseagg:round:v1" || subject?.[0]?.name !== "submissions") {
    throw unverified("certificate: it is no statement about a round");
  }
  const promise = new TextDecoder().decode(decodeBase64(receipt.promise));
  const promised = await openEnvelope(promise, "application/vnd.sparseagg.promise+json", keys, "receipt");
  if (receipt.round !== promised.round) throw unverified("receipt: it names another round than its promise");
  const rounds = [predicate];
  for (const { specSha256, createTime } of predicate.homes ?? []) rounds.push({ ...predicate, specSha256, createTime });
  const differs = (round) => ["round", "tenant", "specSha256", "createTime"].find((name) => promised[name] !== round[name]);
  if (rounds.every(differs)) throw unverified(`receipt: it is of another round: ${differs(predicate)} differs`);
  let node = await sha256([0], decodeBase64(receipt.leaf));
  if (promised.leafSha256 !== hexOf(node)) throw unverified("receipt: the promise is for another leaf");
  if (receipt.leafIndex === undefined || receipt.leafIndex === null) {
    const withdrawn = predicate.withdrawnSha256.includes(promised.leafSha256);
    throw unverified(withdrawn ? "receipt: the submission was withdrawn" : "receipt: there is no proof of inclusion");
  }
  if (Number(receipt.treeSize) !== predicate.numSubmissions) {
    throw unverified(`receipt: its tree has ${receipt.treeSize} leaves, not ${predicate.numSubmissions}`);
  }
  const path = receipt.path.map(decodeBase64);
  let index = Number(receipt.leafIndex);
  const fits = index >= 0 && index < predicate.numSubmissions;
  for (let last = predicate.numSubmissions - 1; last > 0; last = Math.floor(last / 2), index = Math.floor(index / 2)) {
    if (index % 2 === 0 && index === last) continue; // without a sibling
    const sibling = path.shift() ?? new Uint8Array(32);
    node = await (index % 2 === 1 ? sha256([1], sibling, node) : sha256([1], node, sibling));
  }
  if (!fits || path.length > 0 || hexOf(node) !== subject[0].digest.sha256) {
    throw unverified("receipt: the submission is not in the certificate's tree");
  }
  return { leafIndex: Number(receipt.leafIndex), numSubmissions: predicate.numSubmissions, statement };
}

function unverified(message) {
  return new SparseaggError("UNVERIFIED", message, 0);
}

/** Returns the JSON that was signed by a trusted key. */
async function openEnvelope(text, type, keys, what) {
  const { payloadType, payload, signatures } = JSON.parse(text);
  if (payloadType !== type) throw unverified(`${what}: the envelope has the type ${payloadType}`);
  const bytes = decodeBase64(payload);
  const head = new TextEncoder().encode(`DSSEv1 ${type.length} ${type} ${bytes.length} `);
  for (const { keyid, sig } of signatures) {
    const key = keys.get(keyid);
    if (key && (await crypto.subtle.verify("Ed25519", key, decodeBase64(sig), joined([head, bytes])))) {
      return JSON.parse(new TextDecoder().decode(bytes));
    }
  }
  throw unverified(`${what}: it has no signature of a trusted key that fits`);
}

/** Returns the keys of a PEM text by their ids. */
async function importKeys(pem) {
  const keys = new Map();
  for (const [, base64] of pem.matchAll(/-----BEGIN PUBLIC KEY-----([^-]*)-----END PUBLIC KEY-----/g)) {
    const der = decodeBase64(base64.replace(/\s/g, ""));
    const key = await crypto.subtle.importKey("spki", der, "Ed25519", true, ["verify"]);
    keys.set(hexOf(await sha256(new Uint8Array(await crypto.subtle.exportKey("raw", key)))), key);
  }
  if (keys.size === 0) throw unverified("there is no public key in PEM");
  return keys;
}

async function sha256(...parts) {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", joined(parts)));
}

function joined(parts) {
  const bytes = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return bytes;
}

function decodeBase64(base64) {
  return Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
}

function hexOf(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** @returns {string} a random id */
export function randomId() {
  const bytes = globalThis.crypto?.getRandomValues(new Uint8Array(16)) ?? Array.from({ length: 16 }, () => Math.random() * 256);
  return Array.from(bytes, (byte) => Math.floor(byte).toString(16).padStart(2, "0")).join("");
}

/**
 * Packs keys as DELTA_BITPACKED: the gaps between ascending keys, in blocks of 128, each with its own bit width.
 * @param {Uint32Array | number[]} keys strictly ascending, at least one
 * @returns {Uint8Array}
 */
export function packKeys(keys) {
  const blocks = Math.ceil(keys.length / BLOCK_KEYS);
  const widths = new Uint8Array(blocks);
  let size = blocks;
  for (let block = 0; block < blocks; ++block) {
    const end = Math.min(keys.length, (block + 1) * BLOCK_KEYS);
    let most = 0;
    for (let i = Math.max(1, block * BLOCK_KEYS); i < end; ++i) most = Math.max(most, keys[i] - keys[i - 1] - 1);
    widths[block] = bitLength(most);
    size += Math.ceil(((end - block * BLOCK_KEYS) * widths[block]) / 8);
  }
  const packed = new Uint8Array(size);
  packed.set(widths);
  let at = blocks;
  for (let block = 0; block < blocks; ++block) {
    const width = widths[block];
    const end = Math.min(keys.length, (block + 1) * BLOCK_KEYS);
    let bits = 0; // bits of the current byte that are set
    for (let i = block * BLOCK_KEYS; width > 0 && i < end; ++i) {
      let gap = i === 0 ? 0 : keys[i] - keys[i - 1] - 1;
      for (let left = width; left > 0; ) {
        const take = Math.min(8 - bits, left);
        const low = gap % 2 ** take; // gaps have up to 53 bits, more than the bit operators take
        packed[at] |= low << bits;
        gap = (gap - low) / 2 ** take;
        left -= take;
        bits += take;
        if (bits === 8) {
          bits = 0;
          ++at;
        }
      }
    }
    if (bits > 0) ++at;
  }
  return packed;
}

/**
 * The reverse of packKeys.
 * @param {Uint8Array} packed
 * @param {number} firstKey
 * @param {number} numKeys
 * @returns {number[]} keys up to 2^53 - 1
 */
export function unpackKeys(packed, firstKey, numKeys) {
  const keys = new Array(numKeys);
  const blocks = Math.ceil(numKeys / BLOCK_KEYS);
  let at = blocks;
  let key = firstKey;
  for (let block = 0; block < blocks; ++block) {
    const width = packed[block];
    const end = Math.min(numKeys, (block + 1) * BLOCK_KEYS);
    let bits = 0;
    for (let i = block * BLOCK_KEYS; i < end; ++i) {
      let gap = 0;
      for (let got = 0; got < width; ) {
        const take = Math.min(8 - bits, width - got);
        gap += ((packed[at] >> bits) & (2 ** take - 1)) * 2 ** got;
        got += take;
        bits += take;
        if (bits === 8) {
          bits = 0;
          ++at;
        }
      }
      key += gap + (i === 0 ? 0 : 1);
      keys[i] = key;
    }
    if (bits > 0) ++at;
  }
  return keys;
}

// ---- updates to bytes ----

/** The encodings of values by the type of their array. Uint16Array needs a valueEncoding. */
const ENCODINGS = new Map([
  [Float32Array, "FLOAT32"],
  [Float64Array, "FLOAT64"],
  [Int32Array, "INT32"],
  [BigInt64Array, "INT64"],
  [Uint32Array, "UINT32"],
  [BigUint64Array, "UINT64"],
]);
const ARRAYS = new Map([...ENCODINGS].map(([array, name]) => [`VALUE_ENCODING_${name}`, array]));
ARRAYS.set("VALUE_ENCODING_FLOAT16", Uint16Array).set("VALUE_ENCODING_BFLOAT16", Uint16Array);

function checkedTensor(name, { keys = null, values = null, valueEncoding = undefined, ...unknown }) {
  refuseUnknown(unknown, `tensor "${name}": `);
  if (Array.isArray(keys)) {
    if (!keys.every((key) => Number.isSafeInteger(key) && key >= 0)) {
      throw new RangeError(`tensor "${name}": a key is not a whole number from 0 to 2^53 - 1`);
    }
    keys = keys.every((key) => key < 2 ** 32) ? Uint32Array.from(keys) : BigUint64Array.from(keys, BigInt);
  } else if (keys !== null && !(keys instanceof Uint32Array || keys instanceof BigUint64Array)) {
    throw new TypeError(`tensor "${name}": keys are whole numbers, a Uint32Array or a BigUint64Array, not ${keys.constructor.name}`);
  }
  const encoding = values === null ? "NONE" : (valueEncoding ?? ENCODINGS.get(values.constructor));
  if (encoding === undefined) throw new TypeError(`tensor "${name}": values of this type need a valueEncoding`);
  const rows = keys === null ? 1 : keys.length;
  if (keys !== null && values !== null && (rows === 0 ? values.length > 0 : values.length % rows !== 0)) {
    throw new RangeError(`tensor "${name}": ${values.length} values are not whole rows for ${rows} keys`);
  }
  if (keys === null && values === null) throw new TypeError(`tensor "${name}" has neither keys nor values`);
  return { name, keys, values, encoding };
}

/** Cuts a tensor into pieces of whole rows. A dense tensor is cut between values, which are rows of width 1 or not. */
function cut({ name, keys, values, encoding }, chunkBytes) {
  const rows = keys === null ? 1 : keys.length;
  if (rows === 0) return [];
  const width = values === null ? 0 : values.length / rows;
  const rowBytes = (keys === null ? 0 : keys.BYTES_PER_ELEMENT) + width * (values?.BYTES_PER_ELEMENT ?? 0);
  // The rows of a dense tensor are not known here, so that it is one piece.
  const step = keys === null ? rows : Math.max(1, Math.floor(chunkBytes / rowBytes));
  const pieces = [];
  for (let begin = 0; begin < rows; begin += step) {
    const end = Math.min(rows, begin + step);
    pieces.push({
      name,
      encoding,
      keys: keys?.subarray(begin, end) ?? null,
      values: values?.subarray(begin * width, end * width) ?? null,
      bytes: (end - begin) * rowBytes,
    });
  }
  return pieces;
}

function encodePiece({ name, encoding, keys, values }, pack) {
  const fields = { tensor: name, value_encoding: encoding };
  let keyBytes = new Uint8Array();
  if (keys === null) {
    fields.key_encoding = "IMPLICIT";
  } else if (pack && keys instanceof Uint32Array && ascends(keys)) {
    keyBytes = packKeys(keys);
    Object.assign(fields, { key_encoding: "DELTA_BITPACKED", first_key: keys[0], num_keys: keys.length });
  } else {
    keyBytes = bytesOf(keys);
    fields.key_encoding = keys instanceof Uint32Array ? "U32" : "U64";
  }
  fields.key_bytes = keyBytes.length;
  const body = new Uint8Array(keyBytes.length + (values?.byteLength ?? 0));
  body.set(keyBytes);
  if (values !== null) body.set(bytesOf(values), keyBytes.length);
  return { fields, body };
}

/** Returns the parameters and the body of a chunk, without those that identify the upload. */
function encodeChunk(piece, sequence, numChunks, pack, weight) {
  const { fields, body } = piece.name === undefined ? { fields: {}, body: new Uint8Array() } : encodePiece(piece, pack);
  fields.sequence = sequence;
  if (sequence === 0 && weight !== undefined) fields.weight = weight;
  if (sequence === numChunks - 1) fields.last = true;
  return { fields, body };
}

/**
 * Returns the tag, in base64, of an upload whose id others may use: the same for the same content in the same chunks, so
 * that the upload goes on; else a random one, where WebCrypto is not to be had.
 */
async function tagOf(chunks) {
  if (!globalThis.crypto?.subtle) return toBase64(randomId());
  const hashes = [];
  for (const chunk of chunks) {
    const { fields, body } = chunk();
    hashes.push(await sha256(new TextEncoder().encode(JSON.stringify(fields)), [0], body));
  }
  return toBase64(await sha256(...hashes));
}

function ascends(keys) {
  for (let i = 1; i < keys.length; ++i) if (keys[i] <= keys[i - 1]) return false;
  return true;
}

function bitLength(number) {
  let bits = 0;
  while (number >= 1) {
    number = Math.floor(number / 2);
    ++bits;
  }
  return bits;
}

/** The bytes of a typed array. The wire is little-endian, as are all machines with a browser. */
function bytesOf(array) {
  return new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
}

// ---- result pages ----

function decodePage(buffer) {
  const headBytes = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, headBytes)));
  const { slice = {}, summary, nextPageToken, ranges, version = "0", unchanged } = head.page;
  let at = 4 + headBytes;
  const [keyBytes, valueBytes, countBytes, weightBytes, momentBytes] = head.sections.map((size) => {
    at += size;
    return buffer.slice(at - size, at);
  });
  const array = ARRAYS.get(slice.valueEncoding) ?? Uint8Array;
  return {
    summary,
    nextPageToken,
    ranges,
    version,
    unchanged,
    slice,
    keyBytes,
    values: slice.valueEncoding === "VALUE_ENCODING_NONE" ? null : new array(valueBytes),
    counts: countBytes?.byteLength ? new Uint32Array(countBytes) : null,
    weights: weightBytes?.byteLength ? new Float64Array(weightBytes) : null,
    moments: momentBytes ? new Float64Array(momentBytes) : null,
  };
}

function keysOf({ slice, keyBytes, values, counts }, rowWidth) {
  switch (slice.keyEncoding) {
    case "KEY_ENCODING_U64":
      return new BigUint64Array(keyBytes);
    case "KEY_ENCODING_DELTA_BITPACKED":
      return unpackKeys(new Uint8Array(keyBytes), Number(slice.firstKey), Number(slice.numKeys));
    case "KEY_ENCODING_IMPLICIT": {
      const rows = Number(slice.numKeys) || (values ? values.length / rowWidth : (counts?.length ?? 0));
      return Array.from({ length: rows }, (_, i) => Number(slice.firstKey) + i);
    }
    default:
      return new Uint32Array(keyBytes);
  }
}

function joinPages(pages) {
  const summary = pages[0].summary;
  const rowWidth = summary.rowWidth;
  const keys = pages.map((page) => keysOf(page, rowWidth));
  const isWide = keys.some((part) => part instanceof BigUint64Array || (part.length && part[part.length - 1] >= 2 ** 32));
  return {
    keys: isWide
      ? concat(keys.map((part) => (part instanceof BigUint64Array ? part : BigUint64Array.from(part, BigInt))))
      : concat(keys.map((part) => Uint32Array.from(part))),
    values: summary.hasValues ? concat(pages.map((page) => page.values)) : null,
    counts: summary.hasCounts ? concat(pages.map((page) => page.counts ?? new Uint32Array())) : null,
    weights: summary.hasWeights ? concat(pages.map((page) => page.weights ?? new Float64Array())) : null,
    moments: summary.hasMoments ? concat(pages.map((page) => page.moments ?? new Float64Array())) : null,
    rowWidth,
    summary,
  };
}

/** Returns the TensorResult of the pages of a cluster's result: of its rows with keys from `begin` to `end`. */
function rowsBetween({ name, rowWidth = 1 }, pages, begin, end) {
  const none = { keys: new Uint32Array(), values: null, counts: null, weights: null, moments: null, rowWidth };
  const summary = { name, layout: "TENSOR_LAYOUT_SPARSE", rowWidth };
  const whole = pages.length > 0 ? joinPages(pages) : { ...none, summary };
  const { keys } = whole;
  let [first, last] = [0, keys.length];
  while (first < last && keys[first] < begin) ++first;
  while (first < last && end !== 0 && keys[last - 1] >= end) --last;
  const cut = (column, width) => column && column.subarray(first * width, last * width);
  return {
    keys: cut(keys, 1),
    values: cut(whole.values, rowWidth),
    counts: cut(whole.counts, 1),
    weights: cut(whole.weights, 1),
    moments: cut(whole.moments, rowWidth),
    rowWidth,
    summary: { ...whole.summary, numKeys: `${last - first}` },
  };
}

function concat(arrays) {
  if (arrays.length === 1) return arrays[0];
  const joined = new arrays[0].constructor(arrays.reduce((sum, array) => sum + array.length, 0));
  let at = 0;
  for (const array of arrays) {
    joined.set(array, at);
    at += array.length;
  }
  return joined;
}

// ---- tasks ----

function taskPath(name) {
  return `/v1/tasks/${encodeURIComponent(name.replace(/^tasks\//, ""))}`;
}

function leaseOf({ lease }) {
  return { clientId: lease.clientId, leaseId: lease.leaseId };
}

function seconds(ms) {
  return `${(ms / 1000).toFixed(3)}s`;
}

function toBase64(bytes = "") {
  const octets = typeof bytes === "string" ? new TextEncoder().encode(bytes) : bytes;
  let text = "";
  for (let at = 0; at < octets.length; at += 4096) text += String.fromCharCode(...octets.subarray(at, at + 4096));
  return btoa(text);
}

function fromBase64(text = "") {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

function withBytes(task) {
  return { ...task, payload: fromBase64(task.spec?.payload), result: fromBase64(task.result) };
}

// ---- requests ----

/** Every option that a call has is taken before; the rest would be ignored. */
function refuseUnknown(options, where = "") {
  const [name] = Object.keys(options);
  if (name !== undefined) throw new TypeError(`${where}unknown option "${name}"`);
}

/** Returns the parts of the address of a gateway; "" is the page's. */
function addressOf(url) {
  let address;
  try {
    address = new URL(url, globalThis.location?.href);
  } catch {
    // below
  }
  if (["http:", "https:"].includes(address?.protocol)) return address;
  throw new TypeError(`the URL of a gateway begins with http:// or https://, such as "http://127.0.0.1:8003", not "${url}"`);
}

/**
 * Returns why there was no answer, from the error of fetch; and whether the server has closed the connection, and whether
 * another attempt would fail the same way. Node knows; browsers tell it their console alone.
 */
function obstacleOf(error, url) {
  const { code = "", message = "" } = error.cause ?? {};
  const final = (text) => ({ text: `${text} (${message.trim()})`, isFinal: true });
  if (/^ERR_SSL.*ALERT/.test(code)) return final(`${url} refuses the TLS of this client`);
  if (/CERT|LEAF_SIGNATURE/.test(code)) {
    return final(`the certificate of ${url} is not trusted; NODE_EXTRA_CA_CERTS names a file of more authorities`);
  }
  if (/SSL|EPROTO/.test(code)) return final(`there is no TLS at ${url}: is it the port of http://, or of gRPC?`);
  if (code.startsWith("HPE_")) return final(`there is no HTTP/1.1 at ${url}: is it the port of gRPC?`);
  if (code === "UND_ERR_SOCKET") {
    return { text: `${url} closes the connection without an answer: is it a port of https://, or of gRPC?`, isClosed: true };
  }
  return { text: `${url} does not answer: ${error.message}${message && ` (${message})`}` };
}

function roundPath(round) {
  return `/v1/rounds/${encodeURIComponent(round.replace(/^(rounds|streams)\//, ""))}`;
}

function streamPath(stream) {
  return `/v1/streams/${encodeURIComponent(stream.replace(/^streams\//, ""))}`;
}

async function errorOf(response) {
  const problem = await response.json().catch(() => ({}));
  const code = problem.code ?? (response.status >= 502 && response.status <= 504 ? "UNAVAILABLE" : `HTTP_${response.status}`);
  return new SparseaggError(code, problem.detail ?? response.statusText, response.status, problem);
}

function delay(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}

package observe

import "log/slog"

// Kind is one of the events the appliance can tell of.
type Kind uint8

// Events. The text of those with a message identifier is in the table below.
const (
	Start Kind = iota + 1
	Ready
	Stopping
	Stopped
	DirtyBuild

	ConfigRejected
	ConfigWarning
	StateLocked
	StateFailed
	ListenFailed

	ModelLoaded
	ModelFailed

	GenerationBegin
	GenerationReady
	GenerationEnd
	GenerationBackoff
	GenerationUnreaped
	GenerationFailed
	WorkerExit
	WorkerStalled
	WorkerProtocol
	WorkerLog
	DaemonStacks

	RequestState
	RequestDone
	RequestAgain
	RequestSlow
	RequestStuck
	RequestCancel
	AdmissionReject
	AbortReceipt

	TransferCompletionLost
	RankDivergence
	EdgeSuspect
	VerifyFailed
	SelfTest
	SlotQuarantine
	SlotRelease
	SlotOverdue
	LedgerDrift
	FenceDrop

	HealthChange
	CanaryFailed
	WatchdogFailed
	Panic
	LogDropped

	kinds
)

// def is what is fixed about an event.
type def struct {
	name  string
	level slog.Level
	id    string // 32 hexadecimal digits; "" if an operator need not act on it

	// For the journal's catalogue, of events with an id. @FIELD@ stands for a field.
	subject          string
	what, did, doNow string
}

const (
	fine = slog.LevelDebug
	info = slog.LevelInfo
	warn = slog.LevelWarn
	bad  = slog.LevelError
)

// The identifiers were drawn at random once. An event keeps its own for ever:
// people have it in their scripts.
var defs = [kinds]def{
	Start: {"start", info, "47266c0f37d340c69be580b903c33c1e",
		"tandem started",
		"The daemon started. This entry holds the revision it was built from, whether that was committed, the digest of its configuration, and every limit in force with the place that enforces it.",
		"It loads the model and starts the first generation of workers. Until that is ready, clients get 503 with Retry-After.",
		"Nothing. \"tandem config show\" tells every effective limit and where it is enforced."},
	Ready: {"ready", info, "0313e6d809904b7dbb430ed7e1afe344",
		"tandem is ready",
		"A request went through prefill, handover and decode.",
		"It serves.",
		"Nothing. \"tandem chat\" tries it out."},
	Stopping: {"stopping", info, "d2ef6e6585c149fba873266091649f44",
		"tandem is stopping",
		"The daemon was told to stop, or to drain: @TANDEM_REASON@",
		"It admits nothing more and finishes what it began, within the requests' own deadlines.",
		"Nothing. \"tandem requests\" shows what it still waits for."},
	Stopped: {"stopped", info, "2b63b7eb5a084976b65031efc2796ab9",
		"tandem stopped",
		"The daemon ended, and with it all workers.",
		"Every request had its answer or a named error.",
		"Nothing."},
	DirtyBuild: {"build.dirty", warn, "8c60982ef0c64695aa443a386d9cb8ee",
		"This tandem was built from code that is not committed",
		"The binary holds changes that are in no revision, or does not say what it was built from.",
		"It works as usual. Its metrics and \"tandem version\" say dirty.",
		"In production, install a build of a committed revision: \"tandem version\" names the one this came from."},

	ConfigRejected: {"config.rejected", bad, "fd7e6cb9958e41139f7dedc78893e6c1",
		"The configuration has mistakes",
		"The configuration cannot be used: @TANDEM_REASON@",
		"It was not applied. A daemon that was starting ends with exit code 78; systemd keeps the sockets, so that clients wait and are served once it is corrected.",
		"Correct the file and run \"tandem config check\" until it says nothing, then \"systemctl restart tandem\"."},
	ConfigWarning: {name: "config.warning", level: warn},
	StateLocked: {"state.locked", bad, "12072a6a8a70426e91d379f1173a1fce",
		"Another tandem uses this state folder",
		"Two daemons must not share a folder of state: they would use the same generation numbers. @TANDEM_REASON@",
		"This one did not start.",
		"Stop the other one, or give this one a folder of its own: server.state_dir."},
	StateFailed: {"state.failed", bad, "7857b282d0944e11aab9d09f75e50713",
		"The generation number cannot be written",
		"Before each generation its number is written to the state folder and synced. That failed: @TANDEM_REASON@",
		"A generation that runs goes on serving; no new one is started. \"/ready\" says so once it would matter.",
		"Make room on that disk, or correct the folder's owner and mode; \"tandem doctor\" checks both."},
	ListenFailed: {"listen.failed", bad, "66ae560364a741798010d2201152b8dd",
		"The endpoint's address cannot be used",
		"tandem cannot listen where it should: @TANDEM_REASON@",
		"It did not start.",
		"\"ss -ltnp\" shows who has the port. Change server.listen, or the socket unit if systemd passes the socket."},

	ModelLoaded: {name: "model.loaded", level: info},
	ModelFailed: {"model.failed", bad, "3543cb6712b5411cb71c11e7b46f18e6",
		"The model cannot be loaded",
		"The model's file is missing, damaged, or of a kind that this version does not run: @TANDEM_REASON@",
		"Nothing is served.",
		"\"tandem model list\" shows what is there, \"tandem model pull NAME\" fetches, \"tandem model inspect PATH\" tells what a file holds. model.path names the one to serve."},

	GenerationBegin: {"generation.begin", info, "1d8c339758e140f4bb726b8ea867f263",
		"Generation @TANDEM_GENERATION@ begins",
		"All workers of both groups are started anew, together: @TANDEM_REASON@",
		"Requests that had begun are run again from where their answers stand; clients see a pause.",
		"Nothing. \"tandem status\" shows the ranks."},
	GenerationReady: {"generation.ready", info, "301293c6db2b46ea868a4f9c93b106f5",
		"Generation @TANDEM_GENERATION@ is ready",
		"Every worker of the generation can compute.",
		"Queued requests go on.",
		"Nothing."},
	GenerationEnd: {"generation.end", info, "389062f6fb8d4d118da8583f97a82e9e",
		"Generation @TANDEM_GENERATION@ ended",
		"Both groups of workers were ended together and reaped: @TANDEM_REASON@",
		"Their memory is gone with them. The next generation starts at once, unless too many ended lately.",
		"If it was not an operator's wish, look at the entry before it: it names the worker that ended first. The same reason again and again is a fault that a restart does not cure."},
	GenerationBackoff: {"generation.backoff", warn, "e89690e80ea74830a80e7ba8b8a5ea3c",
		"Generations end too fast; the next one waits",
		"More generations ended within restart.window than restart.budget allows, or several in a row did not come up: @TANDEM_REASON@",
		"The next is started after a pause that grows up to restart.backoff_max. It never gives up. Until then clients get 503 with Retry-After, and queued requests keep their place until their own deadline.",
		"\"journalctl -u tandem TANDEM_EVENT=worker.exit\" shows how the workers ended, \"tandem doctor\" whether the machine is fit, \"tandem bundle\" collects all of it."},
	GenerationUnreaped: {"generation.unreaped", bad, "32e490a3ec4641ac94ae9e27bd8c9cf2",
		"A worker of generation @TANDEM_GENERATION@ does not end",
		"A process was killed and is still there: @TANDEM_REASON@. As long as it lives it may touch memory.",
		"No new generation is started; \"/ready\" answers 503 and says why.",
		"\"tandem status\" names the process and its device. A process in state D waits for a driver or a disk; if it does not come back, only a reboot helps. \"tandem bundle\" first."},
	GenerationFailed: {"generation.failed", bad, "5d676ebd60ed4a788a52698774294d8a",
		"Generation @TANDEM_GENERATION@ could not be started",
		"Not all of its processes and memory could be made: @TANDEM_REASON@",
		"What was started is ended again, and the next generation is tried after a pause. Until one is up, clients get 503 with Retry-After.",
		"The reason names what was lacking: memory, processes, threads or open files. \"systemctl show tandem -p LimitNOFILE -p TasksMax -p MemoryMax\" shows what the unit allows."},
	WorkerExit: {"worker.exit", warn, "e2247cbba6024db1b66458444692c876",
		"Worker @TANDEM_ROLE@ @TANDEM_RANK@ ended",
		"A worker process ended that should not have: @TANDEM_REASON@",
		"The whole generation is ended and the next one begun; running requests continue in it.",
		"\"signal: killed\" and nothing before it is often the kernel's out-of-memory killer: \"journalctl -k -g oom\". If workers end again and again, run \"tandem doctor\" and \"tandem bundle\"."},
	WorkerStalled: {"worker.stalled", bad, "f157a523a57049b283b1afc2679e9ea6",
		"Worker @TANDEM_ROLE@ @TANDEM_RANK@ makes no progress",
		"A worker has work and made no progress for longer than deadlines.progress. This entry holds what it last did and said, and when.",
		"The whole generation is ended and the next one begun; running requests continue in it.",
		"Once is no harm. If it comes back, \"tandem bundle\" collects the evidence; on a machine that other work keeps busy, a longer deadlines.progress may be right."},
	WorkerProtocol: {"worker.protocol", bad, "743ff22b1ed3420fa3fabc783f750db6",
		"Worker @TANDEM_ROLE@ @TANDEM_RANK@ broke the protocol",
		"A worker sent what it must not: @TANDEM_REASON@",
		"The whole generation is ended and the next one begun; running requests continue in it.",
		"This is a fault of the software or of the memory. \"tandem version\" must say the same for daemon and workers; then \"tandem bundle\"."},
	WorkerLog:    {name: "worker.log", level: info},
	DaemonStacks: {name: "daemon.stacks", level: info},

	RequestState: {name: "request.state", level: fine},
	RequestDone:  {name: "request.done", level: info},
	RequestAgain: {name: "request.again", level: info},
	RequestSlow:  {name: "request.slow", level: warn},
	RequestStuck: {"request.stuck", bad, "eaec91f3fe66453bae90827cba90bc82",
		"Request @TANDEM_REQUEST@ exceeded its deadline in state @TANDEM_STATE@",
		"A request stayed in one state for longer than that state's deadline. This entry holds its whole history and what each rank last did and said; the entries after it, the stacks of the daemon (daemon.stacks) and of the workers (worker.log).",
		"The client got its answer: a named error. The request's pages are kept apart until it is certain that nobody touches them.",
		"\"journalctl -u tandem TANDEM_REQUEST=@TANDEM_REQUEST@\" is its story, \"tandem requests show @TANDEM_REQUEST@\" its timeline. Several in one state point to that stage; \"tandem status\" shows whether one rank or one pair of ranks is behind all."},
	RequestCancel:   {name: "request.cancel", level: info},
	AdmissionReject: {name: "admission.reject", level: info},
	AbortReceipt:    {name: "abort.receipt", level: fine},

	TransferCompletionLost: {"transfer.completion_lost", warn, "b85802d842f44a83b3431626779dab11",
		"The end of a transfer was not reported",
		"Decode has the KV cache and its digest is right, but prefill did not report the end of the transfer.",
		"The client does not wait for it: its answer goes on. Prefill's pages are kept apart until it is certain that nobody touches them.",
		"Nothing, once. If it grows in \"tandem_transfer_failures_total\" for one pair of ranks, \"tandem bundle\"."},
	RankDivergence: {"rank.divergence", warn, "6144bd0d4b584bca88e2b6a50500acc0",
		"Ranks of one replica disagree",
		"Some ranks finished a step that others have not begun: @TANDEM_REASON@",
		"It watches; the request's own deadline bounds the wait.",
		"\"tandem status\" shows each rank's last progress. A core that other work keeps busy is the usual cause."},
	EdgeSuspect: {"edge.suspect", warn, "7fae180a614d44f9bc2aff6bb6a1a802",
		"Transfers between two replicas fail again and again",
		"Several transfers between the same two replicas failed within a minute: @TANDEM_REASON@",
		"The generation is replaced.",
		"\"tandem doctor\" tests each directed pair. The same pair after a restart points to hardware."},
	VerifyFailed: {"verify.failed", bad, "2e5e289b27254b62889614451146c9fa",
		"A KV cache arrived that is not the one that was sent",
		"After a transfer the digest or the epoch of a page was wrong: @TANDEM_REASON@",
		"The request failed before a token was computed from it; no client saw a wrong answer.",
		"This must not happen. \"tandem doctor\" tests memory paths; \"tandem bundle\" keeps the evidence."},
	SelfTest:       {name: "p2p.selftest", level: info},
	SlotQuarantine: {name: "slot.quarantine", level: fine},
	SlotRelease:    {name: "slot.release", level: fine},
	SlotOverdue: {"slot.overdue", bad, "39cb295532a943cfbf637df4339825f8",
		"KV pages wait too long for proof that nobody touches them",
		"Pages of a request that was given up have been in quarantine for longer than deadlines.quarantine: a rank does not say that it is done with them.",
		"The generation is replaced, which proves it.",
		"Nothing, once. Again and again: \"tandem bundle\"."},
	LedgerDrift: {"ledger.drift", bad, "c874658f0fc04ddfaea0fe7e47938d9d",
		"The page ledger does not add up",
		"The number of pages in all states is not the number of pages of the pool: @TANDEM_REASON@",
		"The generation is replaced; its ledger starts anew.",
		"This is a fault of the software. \"tandem bundle\"."},
	FenceDrop: {name: "fence.drop", level: info},

	HealthChange: {"health.change", info, "8641d91a90e34a6ab5a89a9f6f521ff2",
		"Readiness changed: @TANDEM_STATE@",
		"Whether requests complete end to end changed: @TANDEM_REASON@",
		"\"/ready\" answers accordingly: 200, or 503 with the reason.",
		"If it is not ready, \"tandem status\" says why and what is being done."},
	CanaryFailed: {"canary.failed", warn, "b7d45e0f5dfa49b89237534e4c78735f",
		"The internal test request failed",
		"While idle, and when a generation begins, the daemon sends itself a short request. It failed: @TANDEM_REASON@",
		"It is repeated. Real requests that succeed count more; without any, a generation is replaced whose first canary fails, or several in a row.",
		"\"tandem status\"; \"tandem chat\" tries it from outside."},
	WatchdogFailed: {"watchdog.failed", bad, "0e4cb3bd60c34cb9bdaf96bb99106c25",
		"The daemon judges itself not healthy",
		"The daemon's own control loop does not answer: @TANDEM_REASON@",
		"It stops telling systemd that it is well; systemd then ends it with all stacks in the journal and starts it again.",
		"\"journalctl -u tandem -b\" holds the stacks; \"tandem bundle\"."},
	Panic: {"panic", bad, "1c60479f03eb4a6b94bfe1ef55f62fce",
		"A fault of the software was caught",
		"Serving one request failed with a panic: @TANDEM_REASON@",
		"That client got an error; everything else goes on.",
		"\"tandem bundle\", and report it with the stack in this entry."},
	LogDropped: {"log.dropped", warn, "4b6ee900a9bd4fa098202d265ec3c51e",
		"Events were lost",
		"More events came than could be written, or the journal did not take them.",
		"The lost ones are counted in \"tandem_log_dropped_total\"; nothing waited for them.",
		"\"journalctl -u systemd-journald\" tells whether the journal is slow or full."},
}

// Kinds lists every event.
func Kinds() []Kind {
	out := make([]Kind, 0, kinds-1)
	for k := Kind(1); k < kinds; k++ {
		out = append(out, k)
	}
	return out
}

// String is the event's name, the value of TANDEM_EVENT.
func (k Kind) String() string {
	if k == 0 || k >= kinds {
		return "unknown"
	}
	return defs[k].name
}

// Level is how serious the event is unless At says otherwise.
func (k Kind) Level() slog.Level {
	if k == 0 || k >= kinds {
		return bad
	}
	return defs[k].level
}

// MessageID is the event's MESSAGE_ID in the journal, "" if an operator need
// not act on it.
func (k Kind) MessageID() string {
	if k == 0 || k >= kinds {
		return ""
	}
	return defs[k].id
}

// byName finds a kind by the value of TANDEM_EVENT.
var byName = func() map[string]Kind {
	m := make(map[string]Kind, kinds)
	for _, k := range Kinds() {
		m[k.String()] = k
	}
	return m
}()

package config

// Config is every setting of the appliance. A value from Load is checked and
// complete except for what only the machine can tell, which Resolve fills in.
// Nobody changes a Config after it was loaded.
//
// The tags of a key: toml, its name; default, in the form --set takes; min, max
// and oneof, what is allowed; unit; path, if it names a file and a relative
// value is relative to the config file; doc, for people; at, the place that
// enforces it.
type Config struct {
	Server    Server    `toml:"server" doc:"The HTTP endpoint and where state is kept."`
	Model     Model     `toml:"model" doc:"What is served, and under which name."`
	Backend   Backend   `toml:"backend" doc:"What computes."`
	Prefill   Prefill   `toml:"prefill" doc:"The group that reads prompts."`
	Decode    Decode    `toml:"decode" doc:"The group that writes answers."`
	KV        KV        `toml:"kv" doc:"The KV cache and its way from prefill to decode."`
	Limits    Limits    `toml:"limits" doc:"How much is taken on at once. What exceeds a limit is refused at once, with Retry-After."`
	Deadlines Deadlines `toml:"deadlines" doc:"The longest each state of a request may last, counted from entering it. A deadline that passes ends the request with a named error."`
	Restart   Restart   `toml:"restart" doc:"How generations follow one another when workers fail. The appliance never gives up for good; it only waits longer."`
	Admin     Admin     `toml:"admin" doc:"The operator's socket."`
	Log       Log       `toml:"log" doc:"What is logged, and in which form."`

	file    string            // the file it came from, "" for none
	origins map[string]Origin // by key; a key that is absent has its default
}

// Server is the table [server].
type Server struct {
	Listen      string   `toml:"listen" default:"127.0.0.1:8000" doc:"Address of the endpoint: \"host:port\", or \"unix:/path\". A socket inherited from systemd takes precedence." at:"daemon, when it starts"`
	StateDir    string   `toml:"state_dir" default:"" path:"y" doc:"Folder for the generation counter and post-mortem files. Empty: $STATE_DIRECTORY, else $XDG_STATE_HOME/tandem, else ~/.local/state/tandem." at:"daemon, when it starts; one daemon a folder"`
	APIKeysFile string   `toml:"api_keys_file" default:"" doc:"File with one API key a line, or \"credential:NAME\" for a systemd credential. Empty: no key is asked for." at:"daemon/api, before a request's body is read"`
	MaxBody     Size     `toml:"max_body" default:"32MiB" min:"1KiB" max:"1GiB" doc:"Largest body of a request." at:"daemon/api, while the body is read (413)"`
	CORSOrigins []string `toml:"cors_origins" default:"[]" doc:"Origins whose pages a browser lets use the endpoint: [\"https://chat.example\"], or [\"*\"] for all." at:"daemon/api, on each request with an Origin"`
	Keepalive   Duration `toml:"keepalive" default:"15s" min:"100ms" max:"10m" doc:"How often a stream that has nothing to say sends a comment, so that proxies keep it open." at:"daemon/api, on each stream"`
}

// Model is the table [model].
type Model struct {
	Path            string   `toml:"path" default:"smollm2-135m" doc:"A GGUF file, a folder with a checkpoint, or a catalogue name (\"tandem model list\"). A value without \"/\" that does not end in .gguf is a catalogue name." at:"daemon, when it starts"`
	Name            string   `toml:"name" default:"" doc:"The name served. Empty: the catalogue name, else the file's." at:"daemon/api, against a request's \"model\""`
	Aliases         []string `toml:"aliases" default:"[]" doc:"Further names under which clients may ask for the model." at:"daemon/api, against a request's \"model\""`
	ContextLength   int      `toml:"context_length" default:"0" min:"0" max:"16777216" unit:"tokens" doc:"Window of a request, prompt and answer together. 0: the model's own; more than that is refused." at:"daemon/api, before anything is streamed (400)"`
	MaxOutputTokens int      `toml:"max_output_tokens" default:"2048" min:"1" max:"16777216" unit:"tokens" doc:"Longest answer to a client that names no limit. What is left of the window bounds every answer." at:"daemon/api, when a request is read"`
}

// Backend is the table [backend].
type Backend struct {
	Kind    string `toml:"kind" default:"auto" oneof:"auto cpu cuda" doc:"auto: what the devices named in [prefill] and [decode] need, else the CPU." at:"daemon, when it starts"`
	Kernels string `toml:"kernels" default:"auto" oneof:"auto fine fast float32" doc:"How activations meet quantised weights. fine: rounded to 15 bits, answers as those of float32. fast: to 8 bits in the feed-forward layers, a third faster on long prompts and many streams, and like other engines of this kind. float32: not rounded; slow. auto: fine." at:"daemon/worker, when it starts"`
}

// Prefill is the table [prefill].
type Prefill struct {
	Devices        []string `toml:"devices" default:"[]" doc:"One worker process a device: \"cuda:N\"; \"cpu:N\", pinned to the N-th core this machine lets us use, counted round if there are fewer; or \"cpu\", pinned nowhere. Empty: the first cores, at most 4." at:"daemon/supervise, when a generation starts"`
	TensorParallel int      `toml:"tensor_parallel" default:"0" min:"0" max:"64" doc:"Devices that share one copy of the model; divides their number. 0: all of them." at:"daemon/supervise, when a generation starts"`
	ChunkTokens    int      `toml:"chunk_tokens" default:"512" min:"1" max:"8192" unit:"tokens" doc:"Prompt tokens computed at one go. Smaller: short prompts wait less behind long ones. Larger: fewer, fuller steps." at:"daemon/batch, in each prefill step"`
}

// Decode is the table [decode].
type Decode struct {
	Devices        []string `toml:"devices" default:"[]" doc:"As in [prefill]. Both groups may name the same cores: they take turns." at:"daemon/supervise, when a generation starts"`
	TensorParallel int      `toml:"tensor_parallel" default:"0" min:"0" max:"64" doc:"As in [prefill]." at:"daemon/supervise, when a generation starts"`
	MaxBatch       int      `toml:"max_batch" default:"32" min:"1" max:"256" unit:"requests" doc:"Requests that a replica decodes together. More wait with their KV cache in place." at:"daemon/batch, in each decode step"`
}

// KV is the table [kv].
type KV struct {
	MemoryFraction float64 `toml:"memory_fraction" default:"0.9" min:"0.05" max:"0.98" doc:"Share of a GPU's free memory, after the weights, that its KV pool takes. The CPU backend does not use it." at:"daemon/worker, when it makes its pool"`
	CPUBytes       Size    `toml:"cpu_bytes" default:"auto" min:"1MiB" max:"16TiB" doc:"KV memory of each group on the CPU backend, all its ranks together; taken from the system as it is used. auto: 2GiB, or a quarter of the machine's memory if that is less." at:"daemon/supervise, when a generation starts"`
	Transport      string  `toml:"transport" default:"auto" oneof:"auto handover pull push" doc:"How KV moves: handover (pages change owner, nothing is copied), pull (decode reads), push (prefill writes). auto: handover where both groups share memory, else pull." at:"daemon/transfer, for each pair of ranks"`
	PrefixCache    bool    `toml:"prefix_cache" default:"false" doc:"Keep the KV of finished prompts for later requests that begin alike. Not in this version: true is refused." at:"daemon, when it starts"`
	Digest         bool    `toml:"digest" default:"true" doc:"Check a digest of all KV that arrives before the first token is computed from it." at:"daemon/transfer, before decoding begins"`
}

// Limits is the table [limits].
type Limits struct {
	MaxRequests int `toml:"max_requests" default:"32" min:"1" max:"4096" unit:"requests" doc:"Requests being worked on: from the reservation of memory to the last byte sent." at:"daemon/admit, when a request leaves the queue"`
	MaxQueued   int `toml:"max_queued" default:"64" min:"0" max:"65536" unit:"requests" doc:"Requests waiting for their turn. Beyond it: 429. The default is two a head for some thirty agents, which send side requests in parallel." at:"daemon/admit, when a request arrives"`
	MaxAttempts int `toml:"max_attempts" default:"3" min:"1" max:"1000000" unit:"attempts" doc:"Attempts in a row that may end without a token when generations change under a request. Then: 502 generation_changed." at:"daemon/request, when a generation ends"`
}

// Deadlines is the table [deadlines].
type Deadlines struct {
	Queue        Duration `toml:"queue" default:"30s" min:"10ms" max:"24h" doc:"Waiting for room." at:"daemon/request, state queued (503 queue_timeout)"`
	Reserve      Duration `toml:"reserve" default:"2s" min:"10ms" max:"24h" doc:"Until every decode rank granted its pages." at:"daemon/request, state reserving (503 reserve_timeout)"`
	PrefillStall Duration `toml:"prefill_stall" default:"20s" min:"10ms" max:"24h" doc:"Prefill without a finished chunk." at:"daemon/request, state prefilling (504 prefill_stall)"`
	Handoff      Duration `toml:"handoff" default:"2s" min:"10ms" max:"24h" doc:"From the end of prefill until decode begins to take the KV cache." at:"daemon/request, state kv_ready (504 handoff_stall)"`
	Transfer     Duration `toml:"transfer" default:"15s" min:"10ms" max:"24h" doc:"Most that one transfer may take, however long the prompt. It counts from the transfer's start." at:"daemon/request, state transferring (504 kv_transfer_timeout)"`
	Verify       Duration `toml:"verify" default:"1s" min:"10ms" max:"24h" doc:"From the last copied byte until every rank agrees on what arrived." at:"daemon/request, state verifying (504 kv_verify_timeout)"`
	FirstToken   Duration `toml:"first_token" default:"10s" min:"10ms" max:"24h" doc:"From the verified KV cache to the first token." at:"daemon/request, state decoding (504 first_token_timeout)"`
	TokenStall   Duration `toml:"token_stall" default:"10s" min:"10ms" max:"24h" doc:"Between two tokens." at:"daemon/request, state decoding (504 token_stall, or an error event)"`
	Quarantine   Duration `toml:"quarantine" default:"5s" min:"10ms" max:"24h" doc:"How long pages may wait for proof that nobody touches them; then the generation is replaced." at:"daemon/control, for the oldest page in quarantine"`
	Progress     Duration `toml:"progress" default:"3s" min:"50ms" max:"24h" doc:"How long a worker that has work may show no progress; then the generation is replaced." at:"daemon/supervise, for each worker"`
	Request      Duration `toml:"request" default:"1h" min:"10ms" max:"720h" doc:"A whole request, from its arrival to its last token." at:"daemon/request, in every state (504 request_timeout)"`
}

// Restart is the table [restart].
type Restart struct {
	Budget     int      `toml:"budget" default:"20" min:"1" max:"1000000000" unit:"generations" doc:"Generations that may begin within the window without delay. Each further one waits: first backoff_min, then twice as long each time, never longer than backoff_max." at:"daemon/supervise, before a generation starts"`
	Window     Duration `toml:"window" default:"1m" min:"1s" max:"24h" doc:"The time over which the budget counts. When fewer generations than the budget began within it, waiting ends and starts again from backoff_min." at:"daemon/supervise, before a generation starts"`
	BackoffMin Duration `toml:"backoff_min" default:"100ms" min:"1ms" max:"1h" doc:"The first wait beyond the budget. While it waits the appliance says not ready, and queued requests keep their place." at:"daemon/supervise, before a generation starts"`
	BackoffMax Duration `toml:"backoff_max" default:"30s" min:"1ms" max:"1h" doc:"The longest wait beyond the budget." at:"daemon/supervise, before a generation starts"`
}

// Admin is the table [admin].
type Admin struct {
	Socket string `toml:"socket" default:"" path:"y" doc:"Unix socket for \"tandem status\" and its like. Empty: $RUNTIME_DIRECTORY/admin.sock, else $XDG_RUNTIME_DIR/tandem/admin.sock, else in the state folder." at:"daemon/admin, when it starts"`
}

// Log is the table [log].
type Log struct {
	Level  string `toml:"level" default:"info" oneof:"debug info warn error" doc:"debug tells every state of every request." at:"daemon/observe, on each event"`
	Format string `toml:"format" default:"auto" oneof:"auto journal text json" doc:"auto: the journal when systemd started us, else text on stderr." at:"daemon/observe, when the daemon starts"`
}

// File is the file the config was loaded from, "" if there was none.
func (c *Config) File() string { return c.file }

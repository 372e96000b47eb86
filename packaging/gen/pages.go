package main

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tandem/daemon/cli"
	"tandem/daemon/config"
)

// programPage is tandem(8): every command with its options from the command
// line's own tree, and what there is to know about the service around them.
func programPage(root *cobra.Command, date time.Time) []byte {
	r := newPage("tandem", 8, strings.ToLower(root.Short[:1])+root.Short[1:], date)
	r.section("SYNOPSIS")
	r.line(`\fBtandem\fR \fICOMMAND\fR [\fIOPTION\fR]... [\fIARGUMENT\fR]...`)
	r.section("DESCRIPTION")
	r.paragraphs(root.Long)

	r.section("COMMANDS")
	each(root, func(c *cobra.Command) {
		r.sub(strings.Replace(strings.TrimPrefix(c.UseLine(), root.Name()+" "), "[flags]", "[OPTION]...", 1))
		words := c.Long
		if words == "" {
			words = c.Short + "."
		}
		r.paragraphs(words)
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name != "help" {
				r.item(flagTerm(f), capital(f.Usage)+".")
			}
		})
	})
	r.section("OPTIONS")
	r.paragraphs("All commands know these.")
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) { r.item(flagTerm(f), capital(f.Usage)+".") })
	r.item("-h, --help", "Say how the command is used.")

	r.section("THE SERVICE")
	r.paragraphs(service)
	r.example("tandem model pull --dir /var/lib/tandem/models smollm2-135m\nsystemctl enable --now tandem.socket tandem-admin.socket tandem.service")
	r.paragraphs(maintenance)
	r.example("systemctl stop tandem.socket tandem-admin.socket tandem.service")
	r.paragraphs(clients)

	r.section("THE JOURNAL")
	r.paragraphs(journal)
	r.example("journalctl -u tandem -x\njournalctl -u tandem TANDEM_REQUEST=ID\njournalctl -u tandem TANDEM_EVENT=generation.end\njournalctl -u tandem -p warning")

	r.section("EXIT STATUS")
	r.item(fmt.Sprint(cli.ExitDone), "Done.")
	r.item(fmt.Sprint(cli.ExitFailed), "It failed. Standard error says why, and what to do.")
	r.item(fmt.Sprint(cli.ExitUsage), "Wrong usage.")
	r.item(fmt.Sprint(cli.ExitConfig), "The configuration has mistakes. Standard error names each with its file, line and column.")

	r.section("FILES")
	for _, f := range files {
		r.item(f[0], f[1])
	}
	r.section("ENVIRONMENT")
	for _, e := range environment {
		r.item(e[0], e[1])
	}
	r.section("SEE ALSO")
	r.line(`\fBtandem.toml\fR(5), \fBsystemctl\fR(1), \fBjournalctl\fR(1), \fBsystemd.socket\fR(5)`)
	return r.bytes()
}

const service = `The package brings tandem.service, which runs as the user tandem, and two sockets
that systemd holds for it: tandem.socket, the endpoint, and tandem-admin.socket, for
operators. Before the first start it needs a model:`

const maintenance = `The configuration is read when the service starts. "systemctl restart tandem" applies
a change; answers in progress are finished first, for up to 50 seconds, and who connects
meanwhile waits in the socket. With a configuration that has mistakes the daemon ends with
status 78 and one entry in the journal that names them; systemd tries again every two
seconds, clients wait, and are served once it is corrected. For the same reason the
service comes back when the next client connects, unless its sockets are stopped with it:`

const clients = `A client need not fear a restart if it does what all official SDKs do: ask again after
an answer 429 or 503, when the seconds of Retry-After have passed, and when a connection
breaks before the first byte of an answer. Answers that have begun go on in the next
generation of workers, but not across the end of the daemon itself.`

const journal = `Each event is one entry, with fields: TANDEM_EVENT, and as they apply TANDEM_REQUEST,
TANDEM_GENERATION, TANDEM_ATTEMPT, TANDEM_STATE, TANDEM_ROLE, TANDEM_RANK, TANDEM_DEVICE,
TANDEM_AGE_MS and TANDEM_REASON. For those on which an operator may have to act,
"journalctl -x" adds what happened, what the daemon did about it, and what to do next.
Prompts and answers are never logged.`

var files = [][2]string{
	{config.SystemConfig, "The configuration of the service, see tandem.toml(5)."},
	{"/var/lib/tandem", "State of the service: the number of the last generation. Elsewhere: server.state_dir, else $XDG_STATE_HOME/tandem, else ~/.local/state/tandem."},
	{"/var/lib/tandem/models", "Models of the service. `tandem model pull` puts them into $XDG_DATA_HOME/tandem/models, else ~/.local/share/tandem/models, unless told otherwise with --dir."},
	{"/run/tandem/admin.sock", "The socket for operators. Elsewhere: admin.socket, else $XDG_RUNTIME_DIR/tandem/admin.sock, else in the state folder."},
}

var environment = [][2]string{
	{"TANDEM_CONFIG", "The configuration file, where no command line names one."},
	{"XDG_STATE_HOME, XDG_DATA_HOME, XDG_RUNTIME_DIR", "Base folders for state, models and the socket for operators."},
	{"STATE_DIRECTORY, RUNTIME_DIRECTORY, CREDENTIALS_DIRECTORY", "Set by systemd for a service; they go before the others."},
	{"OPENAI_API_KEY", "The key that `tandem chat` sends."},
	{"NO_COLOR", "If it is set, there is no colour on a terminal."},
}

// each visits the commands that have something to say, in the order of the help.
func each(c *cobra.Command, visit func(*cobra.Command)) {
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			visit(sub)
			each(sub, visit)
		}
	}
}

func flagTerm(f *pflag.Flag) string {
	term := "--" + f.Name
	if f.Shorthand != "" {
		term = "-" + f.Shorthand + ", " + term
	}
	if kind, _ := pflag.UnquoteUsage(f); kind != "" {
		term += " " + strings.ToUpper(strings.TrimSuffix(kind, "Array"))
	}
	return term
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// configPage is tandem.toml(5), from the list of keys.
func configPage(date time.Time) []byte {
	r := newPage("tandem.toml", 5, "configuration of tandem", date)
	r.section("SYNOPSIS")
	r.line(text(config.SystemConfig))
	r.section("DESCRIPTION")
	r.paragraphs(about)
	r.example(config.WorkingExample)
	sections := reflect.TypeFor[config.Config]()
	for i := range sections.NumField() {
		tag := sections.Field(i).Tag
		name := tag.Get("toml")
		if name == "" {
			continue
		}
		r.section("[" + name + "]")
		r.paragraphs(tag.Get("doc"))
		for _, k := range config.Keys() {
			if k.Section == name {
				r.item(k.Leaf, k.Doc+"\n\n"+facts(k))
			}
		}
	}
	r.section("SEE ALSO")
	r.line(`\fBtandem\fR(8)`)
	return r.bytes()
}

const about = `A file in TOML. Every key has a default; a key or table that is not known is an
error. Durations and sizes are strings with units: "30s", "1h30m", "512MiB". A relative path
is relative to the folder of the file. Each limit is enforced at the place that its
description names.

"tandem config check FILE" finds mistakes, "tandem config show" tells every effective value
and where it came from, "tandem config init" writes a file with every key. The file is read
when the daemon starts.

A whole file can be as short as this:`

// facts are a key's type, limits, default and place.
func facts(k config.Key) string {
	out := []string{"A " + k.Type}
	if k.Unit != "" {
		out[0] += " of " + k.Unit
	}
	if k.Allowed != "" {
		out[0] += ", " + k.Allowed
	}
	out = append(out, "Default: "+k.Default, "Enforced by "+k.Where)
	return strings.Join(out, ". ") + "."
}

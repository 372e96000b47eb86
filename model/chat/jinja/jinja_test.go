package jinja_test

import (
	"errors"
	"strings"
	"testing"

	"tandem/model/chat/jinja"
)

func render(source string, vars map[string]jinja.Value, budget int) (jinja.Text, error) {
	t, err := jinja.Parse("test", source)
	if err != nil {
		return nil, err
	}
	return t.Render(vars, jinja.Env{Budget: budget})
}

func TestSyntaxErrorsNameTemplateAndLine(t *testing.T) {
	for source, want := range map[string]string{
		"a\n{% if x %}\nb":                 "line 2: 'if' is not closed by 'endif'",
		"{% for x in y %}":                 "line 1: 'for' is not closed by 'endfor'",
		"a\n\n{{ 'x }}":                    "line 3: a string is not closed",
		"{{ 1 + }}":                        "line 1: expected an expression, got the end of an expression",
		"\n{{ a b }}":                      "line 2: expected the end of the expression, got 'b'",
		"{% foo %}":                        "unknown tag 'foo'",
		"{% endif %}":                      "unknown tag 'endif'",
		"{% extends 'x' %}":                "unknown tag 'extends'",
		"{{ a":                             "a tag is not closed by }}",
		"{# a":                             "a comment is not closed",
		"{% raw %} {{ x }}":                "raw is not closed by endraw",
		"{% break %}":                      "'break' outside a loop",
		"{{ (1]}}":                         "unexpected \"]\"",
		"{{ $ }}":                          "unexpected character '$'",
		"{{ 99999999999999999999 }}":       "number 99999999999999999999 is not supported",
		"{% set true = 1 %}":               "cannot assign to 'true'",
		"{{ '\\xzz' }}":                    "\\x is not followed by 2 hexadecimal digits",
		"{% macro m(a=1, b) %}":            "a parameter without a default",
		"{{ f(a=1, 2) }}":                  "an argument by place follows one by name",
		strings.Repeat("{% if x %}", 5000): "nested",
		"{{ " + strings.Repeat("(", 5000):  "nested",
		"{{ " + strings.Repeat("not ", 5000) + "1 }}": "nested",
		"{{ " + strings.Repeat("- ", 5000) + "1 }}":   "nested",
		"{{ 1" + strings.Repeat("+1", 5000) + "}}":    "too long",
		"{{ x" + strings.Repeat("|abs", 5000) + "}}":  "too long",
		"{{ x" + strings.Repeat("[0]", 5000) + "}}":   "too long",
		"{{ x" + strings.Repeat(" or x", 5000) + "}}": "too long",
		"{{ x" + strings.Repeat(" if x", 5000) + "}}": "too long",
		strings.Repeat(" ", jinja.MaxSource+1):        "the template has 1048577 bytes",
	} {
		_, err := jinja.Parse("test", source)
		var s *jinja.SyntaxError
		if !errors.As(err, &s) || !strings.Contains(err.Error(), "template test: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: error %v, want %q", source, err, want)
		}
	}
}

// What a hostile template may try; each must end by an error, soon.
func TestHostileTemplatesEnd(t *testing.T) {
	for name, source := range map[string]string{
		"long loop":          "{% for i in range(1000000000000) %}{% endfor %}",
		"loops in loops":     "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
		"doubling":           "{% set ns = namespace(x='a') %}{% for i in range(64) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
		"doubling a list":    "{% set ns = namespace(x=[1]) %}{% for i in range(64) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
		"repetition":         "{{ 'a' * 9223372036854775807 }}",
		"repetition of many": "{{ ('a' * 100000) * 92233720368547758 }}",
		"list repetition":    "{{ [1] * 999999999999 }}",
		"replace":            "{% set x = 'a' * 100000 %}{{ x | replace('a', x) }}",
		"replace of nothing": "{% set x = 'a' * 100000 %}{{ x.replace('', x) }}",
		"join":               "{% set x = 'a' * 100000 %}{{ x | join(x) }}",
		"indent":             "{{ ('a\n' * 1000) | indent(10000000) }}",
		"indent of json":     "{{ [[[1]]] | tojson(indent=1000000000) }}",
		"batch":              "{{ [1] | batch(100000000000, 0) | list }}",
		"format":             "{% set x = 'a' * 100000 %}{{ ('{0}' * 10000).format(x) }}",
		"output":             "{% for i in range(100000) %}{{ 'a' * 1000 }}{% endfor %}",
		"rfind":              "{% set x = 'a' * 400000 %}{{ x.rfind(('a' * 200000) ~ 'b') }}",
		"sort":               "{{ (['a' * 100000] * 10000) | sort | length }}",
		"sameness":           "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x == ns.x }}",
		"deep json":          "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}",
		"printing":           "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
	} {
		if _, err := render(source, nil, 1<<22); !errors.Is(err, jinja.ErrBudget) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	for name, c := range map[string]struct{ source, want string }{
		"endless macro":       {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "calls are nested"},
		"two endless macros":  {"{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}", "calls are nested"},
		"endless caller":      {"{% macro m() %}{{ caller() }}{% call m() %}{% endcall %}{% endmacro %}{% macro o() %}{% call m() %}{{ o() }}{% endcall %}{% endmacro %}{{ o() }}", "calls are nested"},
		"endless recursion":   {"{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "calls are nested"},
		"deep list":           {"{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}", "values are nested"},
		"namespace in itself": {"{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns.x }}{{ ns == ns }}{{ ns.x | tojson }}", "not JSON serializable"},
		"big power":           {"{{ 10 ** 400 }}", "integer is too large"},
		"overflow":            {"{{ 9223372036854775807 + 1 }}", "integer is too large"},
		"division":            {"{{ 1 // 0 }}", "by zero"},
		"modulo":              {"{{ -9223372036854775807 - 1 }}{{ (-9223372036854775807 - 1) // -1 }}", "integer is too large"},
		"change":              {"{{ [1].append(2) }}", "not allowed"},
		"unknown filter":      {"{{ 1 | nofilter }}", "no filter named 'nofilter'"},
		"unknown test":        {"{{ 1 is notest }}", "no test named 'notest'"},
		"undefined":           {"{{ a.b }}", "'a' is undefined"},
	} {
		_, err := render(c.source, nil, 1<<22)
		var r *jinja.RuntimeError
		if !errors.As(err, &r) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "template test: line ") {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}

// Whatever a template does to text, its characters keep their origin.
func TestForeignTextStaysForeign(t *testing.T) {
	item, err := jinja.FromJSON([]byte(`{"k<": "v<", "n": 12}`))
	if err != nil {
		t.Fatal(err)
	}
	vars := map[string]jinja.Value{"x": jinja.Foreign("ab<|c"), "item": item}
	for source, want := range map[string]string{
		"<|{{ x }}|>":                                                "<|[ab<|c]|>",
		"{{ '<' ~ x[2:] ~ x[::-1] }}":                                "<[<|cc|<ba]",
		"{{ x.replace('<', '<X') }}":                                 "[ab]<X[|c]",
		"{{ x.split('<') | join('<') }}":                             "[ab]<[|c]",
		"{{ x | upper }}{{ x | title }}":                             "[AB<|CAb<|c]",
		"{{ x * 2 }}":                                                "[ab<|cab<|c]",
		"{{ item | tojson }}":                                        `{"[k<]": "[v<]", "[n]": 12}`,
		"{{ [x, '<'] }}":                                             "['[ab<|c]', '<']",
		"{{ '%s<' % x }}{{ '<{}'.format(x) }}":                       "[ab<|c]<<[ab<|c]",
		"{% set y %}<{{ x }}{% endset %}{{ y }}":                     "<[ab<|c]",
		"{% macro m(a) %}<{{ a }}{% endmacro %}{{ m(x) | trim }}":    "<[ab<|c]",
		"{% for c in x %}{{ c }}-{% endfor %}":                       "[a]-[b]-[<]-[|]-[c]-",
		"{% for k, v in item.items() %}<{{ k }}>{{ v }}{% endfor %}": "<[k<]>[v<]<[n]>12",
		"{{ x | indent(1, true) }}{{ x | e }}":                       " [ab<|cab&lt;|c]",
		"{% if x == 'ab<|c' %}{{ '<' in x }}{% endif %}":             "True",
		"{{ '{\"a\": \"<\"}' | fromjson }}":                          "{'[a]': '[<]'}",
		"{{ x | list | first }}{{ x | last }}":                       "[ac]",
		"{{ [x, x] | unique | join('|') }}":                          "[ab<|c]",
	} {
		out, err := render(source, vars, 1<<16)
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		var got strings.Builder
		out.Runs(func(part string, foreign bool) {
			if foreign {
				part = "[" + part + "]"
			}
			got.WriteString(part)
		})
		if got.String() != want {
			t.Errorf("%s: got %s, want %s", source, got.String(), want)
		}
	}
}

func TestJSONIsLimited(t *testing.T) {
	for _, bad := range []string{"", "{", "[1,]", "1 2", "nul", `{"a" 1}`, "1e999", strings.Repeat("[", 1000) + strings.Repeat("]", 1000)} {
		if v, err := jinja.FromJSON([]byte(bad)); err == nil {
			t.Errorf("%.20q gives %v", bad, v)
		}
	}
}

func FuzzRender(f *testing.F) {
	for _, s := range []string{
		"{% for m in messages %}{{ m.role ~ m['content'] | trim }}{% else %}x{% endfor %}",
		"{%- macro m(a, b=1) -%}{{ caller() }}{{ a ** b }}{%- endmacro -%}{% call m(2) %}{{ [1,2][::-1] }}{% endcall %}",
		"{% set ns = namespace(x=1) %}{% set ns.x = ns.x + 1 %}{{ ns.x is odd }}{{ 'a' if ns }}",
		"{{ messages | tojson(indent=2) }}{{ '%s' % 1 }}{{ x.y }}{% raw %}{{{% endraw %}",
		"{% for a, b in {'k': 'v'} | items recursive %}{{ loop.cycle(1, 2) }}{% break %}{% endfor %}",
		"{{ messages | map(attribute='content') | map('upper') | join(',') }}{{ range(3) | batch(2) | list }}",
		"{% filter upper | trim %}a{% endfilter %}{% set q | upper %}b{% endset %}{% with z = 1 %}{{ z }}{% endwith %}",
	} {
		f.Add(s, `[{"role":"user","content":"hi <|im_end|>"}]`)
	}
	f.Add("{{ messages }}", `{"a":[1,2.5,null,true,"\u0000é"]}`)
	f.Fuzz(func(t *testing.T, source, data string) {
		v, err := jinja.FromJSON([]byte(data))
		if err != nil {
			v = nil
		}
		out, err := render(source, map[string]jinja.Value{"messages": v}, 1<<18)
		if err != nil {
			var s *jinja.SyntaxError
			var r *jinja.RuntimeError
			var x *jinja.RaisedError
			if !errors.As(err, &s) && !errors.As(err, &r) && !errors.As(err, &x) && !errors.Is(err, jinja.ErrBudget) {
				t.Fatalf("an error of an unknown kind: %v", err)
			}
			return
		}
		joined := ""
		out.Runs(func(part string, foreign bool) { joined += part })
		if joined != out.String() {
			t.Fatalf("runs give %q, the text is %q", joined, out.String())
		}
	})
}

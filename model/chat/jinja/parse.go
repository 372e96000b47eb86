package jinja

import "slices"

// parser is a recursive descent parser; what is wrong is a panic of *SyntaxError.
type parser struct {
	tokens []lexeme
	at     int
	depth  int
	macros []*macro // being parsed, the innermost last
	loops  int
}

func (p *parser) cur() *lexeme { return &p.tokens[p.at] }

func (p *parser) next() *lexeme {
	t := &p.tokens[p.at]
	if t.kind != tEnd {
		p.at++
	}
	return t
}

func (p *parser) line() int { return p.cur().line }

func (p *parser) isOp(op string) bool { return p.cur().kind == tOp && p.cur().text == op }
func (p *parser) isName(n string) bool {
	return p.cur().kind == tName && p.cur().text == n
}

func (p *parser) takeOp(op string) bool {
	if p.isOp(op) {
		p.at++
		return true
	}
	return false
}

func (p *parser) takeName(n string) bool {
	if p.isName(n) {
		p.at++
		return true
	}
	return false
}

func (t *lexeme) describe() string {
	switch t.kind {
	case tEnd:
		return "the end of the template"
	case tData:
		return "text"
	case tPrint, tBlock:
		return "a tag"
	case tEndOut:
		return "the end of an expression"
	case tEndTag:
		return "the end of a tag"
	case tString:
		return "a string"
	case tInt, tFloat:
		return "a number"
	}
	return "'" + t.text + "'"
}

func (p *parser) expectOp(op string) {
	if !p.takeOp(op) {
		syntax(p.line(), "expected '%s', got %s", op, p.cur().describe())
	}
}

func (p *parser) expectName() string {
	t := p.next()
	if t.kind != tName {
		syntax(t.line, "expected a name, got %s", t.describe())
	}
	return t.text
}

func (p *parser) endTag() {
	if t := p.next(); t.kind != tEndTag {
		syntax(t.line, "expected the end of the tag, got %s", t.describe())
	}
}

// deeper limits recursion; the result ends it.
func (p *parser) deeper() func() {
	if p.depth++; p.depth > 4*maxNesting {
		syntax(p.line(), "the template is nested too deep")
	}
	return func() { p.depth-- }
}

func (p *parser) template() []node {
	body, _ := p.block(0, "")
	return body
}

// block reads statements up to a tag whose name is one of ends, and takes the
// name, but not the rest of the tag. With no ends it reads to the end.
func (p *parser) block(start int, open string, ends ...string) (body []node, end string) {
	defer p.deeper()()
	for {
		switch t := p.next(); t.kind {
		case tEnd:
			if len(ends) > 0 {
				syntax(start, "'%s' is not closed by '%s'", open, ends[len(ends)-1])
			}
			return body, ""
		case tData:
			body = append(body, &textNode{Own(t.text)})
		case tPrint:
			n := &printNode{line: t.line, x: p.tuple(true)}
			if t := p.next(); t.kind != tEndOut {
				syntax(t.line, "expected the end of the expression, got %s", t.describe())
			}
			body = append(body, n)
		case tBlock:
			name := p.expectName()
			if slices.Contains(ends, name) {
				return body, name
			}
			body = append(body, p.statement(t.line, name)...)
		}
	}
}

func one(n node) []node { return []node{n} }

func (p *parser) statement(line int, name string) []node {
	switch name {
	case "if":
		return one(p.ifStatement(line))
	case "for":
		return one(p.forStatement(line))
	case "set":
		return one(p.setStatement(line))
	case "macro":
		m := &macro{name: p.expectName()}
		p.params(m)
		p.endTag()
		p.macroBody(m, line, "macro")
		return one(&macroNode{line, m})
	case "call":
		m := &macro{name: "caller"}
		if p.isOp("(") {
			p.params(m)
		}
		x, ok := p.expression(true).(*callExpr)
		if !ok {
			syntax(line, "'call' needs a call")
		}
		p.endTag()
		p.macroBody(m, line, "call")
		return one(&callNode{line, x, m})
	case "filter":
		n := &filterNode{line: line, filters: p.filter(nil, true)}
		p.endTag()
		n.body, _ = p.block(line, "filter", "endfilter")
		p.endTag()
		return one(n)
	case "with":
		n := &withNode{line: line}
		for p.cur().kind != tEndTag {
			if len(n.targets) > 0 {
				p.expectOp(",")
			}
			n.targets = append(n.targets, p.targetPart(false))
			p.expectOp("=")
			n.values = append(n.values, p.expression(true))
		}
		p.endTag()
		n.body, _ = p.block(line, "with", "endwith")
		p.endTag()
		return one(n)
	case "generation":
		// Marks what a model is trained to say; to a prompt it means nothing.
		p.endTag()
		n := &withNode{line: line}
		n.body, _ = p.block(line, "generation", "endgeneration")
		p.endTag()
		return one(n)
	case "break", "continue":
		if p.loops == 0 {
			syntax(line, "'%s' outside a loop", name)
		}
		p.endTag()
		if name == "break" {
			return one(breakNode{})
		}
		return one(continueNode{})
	}
	syntax(line, "unknown tag '%s'", name)
	return nil
}

func (p *parser) ifStatement(line int) node {
	n := &ifNode{line: line}
	for {
		cond := p.tuple(false)
		p.endTag()
		body, end := p.block(line, "if", "elif", "else", "endif")
		n.branches = append(n.branches, branch{cond, body})
		if end == "elif" {
			continue
		}
		if end == "else" {
			p.endTag()
			n.otherwise, _ = p.block(line, "if", "endif")
		}
		p.endTag()
		return n
	}
}

func (p *parser) forStatement(line int) node {
	n := &forNode{line: line, target: p.target(false)}
	if !p.takeName("in") {
		syntax(p.line(), "expected 'in', got %s", p.cur().describe())
	}
	n.list = p.tuple(false)
	if p.takeName("if") {
		n.cond = p.expression(true)
	}
	n.recursive = p.takeName("recursive")
	p.endTag()
	p.loops++
	body, end := p.block(line, "for", "else", "endfor")
	p.loops--
	n.body = body
	if end == "else" {
		p.endTag()
		n.otherwise, _ = p.block(line, "for", "endfor")
	}
	p.endTag()
	return n
}

func (p *parser) setStatement(line int) node {
	t := p.target(true)
	if p.takeOp("=") {
		n := &setNode{line, t, p.tuple(true)}
		p.endTag()
		return n
	}
	n := &captureNode{line: line, target: t}
	if p.isOp("|") {
		n.filters = p.filter(nil, false)
	}
	p.endTag()
	n.body, _ = p.block(line, "set", "endset")
	p.endTag()
	return n
}

func (p *parser) params(m *macro) {
	p.expectOp("(")
	for !p.takeOp(")") {
		if len(m.params) > 0 {
			p.expectOp(",")
		}
		m.params = append(m.params, p.expectName())
		var x expr
		if p.takeOp("=") {
			x = p.expression(true)
		} else if n := len(m.defaults); n > 0 && m.defaults[n-1] != nil {
			syntax(p.line(), "a parameter without a default follows one that has one")
		}
		m.defaults = append(m.defaults, x)
	}
}

func (p *parser) macroBody(m *macro, line int, name string) {
	p.macros = append(p.macros, m)
	loops := p.loops
	p.loops = 0
	m.body, _ = p.block(line, name, "end"+name)
	p.loops = loops
	p.macros = p.macros[:len(p.macros)-1]
	p.endTag()
}

// target reads what is assigned to, perhaps several things.
func (p *parser) target(attr bool) target {
	first := p.targetPart(attr)
	if !p.isOp(",") {
		return first
	}
	t := target{parts: []target{first}}
	for p.takeOp(",") {
		if p.isOp("=") || p.isName("in") {
			break
		}
		t.parts = append(t.parts, p.targetPart(false))
	}
	return t
}

func (p *parser) targetPart(attr bool) target {
	if p.takeOp("(") {
		defer p.deeper()()
		t := p.target(false)
		p.expectOp(")")
		if t.parts == nil {
			t = target{parts: []target{t}}
		}
		return t
	}
	name := p.expectName()
	switch name {
	case "true", "false", "none", "True", "False", "None":
		syntax(p.line(), "cannot assign to '%s'", name)
	}
	t := target{name: name}
	if attr && p.takeOp(".") {
		t.attr = p.expectName()
	}
	return t
}

// tuple reads an expression, or several with commas between them.
func (p *parser) tuple(cond bool) expr {
	first := p.expression(cond)
	if !p.isOp(",") {
		return first
	}
	l := &listExpr{items: []expr{first}, look: asTuple}
	for p.takeOp(",") {
		if k := p.cur().kind; k == tEndTag || k == tEndOut || p.isOp(")") {
			break
		}
		l.items = append(l.items, p.expression(cond))
	}
	return l
}

// expression reads an expression; cond says whether "a if b else c" may be one.
func (p *parser) expression(cond bool) expr {
	defer p.deeper()()
	x := p.or()
	for i := 0; cond && p.takeName("if"); i++ {
		p.short(i)
		n := &condExpr{cond: p.or(), then: x}
		if p.takeName("else") {
			n.otherwise = p.expression(true)
		}
		x = n
	}
	return x
}

func (p *parser) or() expr {
	x := p.and()
	for i := 0; p.takeName("or"); i++ {
		p.short(i)
		x = &logicExpr{false, x, p.and()}
	}
	return x
}

func (p *parser) and() expr {
	x := p.not()
	for i := 0; p.takeName("and"); i++ {
		p.short(i)
		x = &logicExpr{true, x, p.not()}
	}
	return x
}

func (p *parser) not() expr {
	if p.takeName("not") {
		defer p.deeper()()
		return &notExpr{p.not()}
	}
	return p.compare()
}

func (p *parser) compare() expr {
	n := &compareExpr{x: p.sum()}
	for {
		op := ""
		switch t := p.cur(); {
		case t.kind == tOp && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="}, t.text), p.isName("in"):
			op = t.text
			p.at++
		case p.isName("not") && p.tokens[p.at+1].kind == tName && p.tokens[p.at+1].text == "in":
			op = "not in"
			p.at += 2
		default:
			if n.ops == nil {
				return n.x
			}
			return n
		}
		n.ops = append(n.ops, op)
		n.args = append(n.args, p.sum())
	}
}

// short limits chains: a long one is a deep tree.
func (p *parser) short(n int) {
	if n > maxNesting {
		syntax(p.line(), "an expression is too long")
	}
}

// left reads a chain of operators that bind to the left.
func (p *parser) left(operand func() expr, ops ...string) expr {
	x := operand()
	for i := 0; p.cur().kind == tOp && slices.Contains(ops, p.cur().text); i++ {
		p.short(i)
		x = &binExpr{p.next().text, x, operand()}
	}
	return x
}

func (p *parser) sum() expr     { return p.left(p.concat, "+", "-") }
func (p *parser) concat() expr  { return p.left(p.product, "~") }
func (p *parser) product() expr { return p.left(p.power, "*", "/", "//", "%") }
func (p *parser) power() expr   { return p.left(func() expr { return p.unary(true) }, "**") }

func (p *parser) unary(filters bool) expr {
	defer p.deeper()()
	var x expr
	if p.isOp("-") || p.isOp("+") {
		x = &signExpr{p.next().text[0], p.unary(false)}
	} else {
		x = p.primary()
	}
	x = p.postfix(x)
	for i := 0; filters; i++ {
		p.short(i)
		switch {
		case p.isOp("|"):
			x = p.filter(x, false)
		case p.isName("is"):
			x = p.test(x)
		case p.isOp("("):
			x = p.call(x)
		default:
			return x
		}
	}
	return x
}

func (p *parser) primary() expr {
	t := p.next()
	switch t.kind {
	case tName:
		switch t.text {
		case "true", "True":
			return constExpr{true}
		case "false", "False":
			return constExpr{false}
		case "none", "None":
			return constExpr{nil}
		}
		if n := len(p.macros); n > 0 {
			m := p.macros[n-1]
			m.varargs = m.varargs || t.text == "varargs"
			m.kwargs = m.kwargs || t.text == "kwargs"
			m.caller = m.caller || t.text == "caller"
		}
		return nameExpr{t.text}
	case tString:
		text := t.text
		for p.cur().kind == tString {
			text += p.next().text
		}
		return constExpr{Own(text)}
	case tInt:
		return constExpr{t.int}
	case tFloat:
		return constExpr{t.num}
	case tOp:
		switch t.text {
		case "(":
			if p.takeOp(")") {
				return &listExpr{look: asTuple}
			}
			x := p.tuple(true)
			p.expectOp(")")
			return x
		case "[":
			l := &listExpr{}
			for !p.takeOp("]") {
				if len(l.items) > 0 {
					p.expectOp(",")
					if p.takeOp("]") {
						break
					}
				}
				l.items = append(l.items, p.expression(true))
			}
			return l
		case "{":
			d := &dictExpr{}
			for !p.takeOp("}") {
				if len(d.keys) > 0 {
					p.expectOp(",")
					if p.takeOp("}") {
						break
					}
				}
				d.keys = append(d.keys, p.expression(true))
				p.expectOp(":")
				d.values = append(d.values, p.expression(true))
			}
			return d
		}
	}
	syntax(t.line, "expected an expression, got %s", t.describe())
	return nil
}

func (p *parser) postfix(x expr) expr {
	for n := 0; ; n++ {
		p.short(n)
		switch {
		case p.takeOp("."):
			t := p.next()
			switch t.kind {
			case tName:
				x = &attrExpr{x, t.text}
			case tInt:
				x = &itemExpr{x, constExpr{t.int}}
			default:
				syntax(t.line, "expected a name after '.', got %s", t.describe())
			}
		case p.takeOp("["):
			x = &itemExpr{x, p.subscript()}
			p.expectOp("]")
		case p.isOp("("):
			x = p.call(x)
		default:
			return x
		}
	}
}

func (p *parser) subscript() expr {
	var parts [3]expr
	n := 0
	slice := false
	for {
		switch {
		case p.takeOp(":"):
			slice = true
			if n++; n > 2 {
				syntax(p.line(), "a slice has at most three parts")
			}
		case p.isOp("]"):
			if !slice {
				if parts[0] == nil {
					syntax(p.line(), "expected an expression, got ']'")
				}
				return parts[0]
			}
			return &sliceExpr{parts[0], parts[1], parts[2]}
		default:
			if parts[n] != nil {
				syntax(p.line(), "expected ']', got %s", p.cur().describe())
			}
			parts[n] = p.expression(true)
		}
	}
}

func (p *parser) call(f expr) *callExpr {
	c := &callExpr{line: p.line(), f: f}
	p.expectOp("(")
	for n := 0; !p.takeOp(")"); n++ {
		if n > 0 {
			p.expectOp(",")
			if p.takeOp(")") {
				break
			}
		}
		switch {
		case p.takeOp("**"):
			c.map_ = p.expression(true)
		case p.takeOp("*"):
			c.list = p.expression(true)
		case p.cur().kind == tName && p.tokens[p.at+1].kind == tOp && p.tokens[p.at+1].text == "=":
			name := p.expectName()
			p.at++
			c.named = append(c.named, namedExpr{name, p.expression(true)})
		default:
			if c.named != nil {
				syntax(p.line(), "an argument by place follows one by name")
			}
			c.args = append(c.args, p.expression(true))
		}
	}
	return c
}

// filter reads a chain of filters; inline says that the first has no bar.
func (p *parser) filter(x expr, inline bool) expr {
	for n := 0; inline || p.takeOp("|"); n++ {
		p.short(n)
		inline = false
		f := &filterExpr{line: p.line(), x: x, name: p.expectName()}
		for p.takeOp(".") {
			f.name += "." + p.expectName()
		}
		if p.isOp("(") {
			c := p.call(nil)
			if c.list != nil || c.map_ != nil {
				syntax(f.line, "filter '%s' does not take * or **", f.name)
			}
			f.args, f.named = c.args, c.named
		}
		x = f
	}
	return x
}

func (p *parser) test(x expr) expr {
	line := p.line()
	p.at++ // is
	negated := p.takeName("not")
	t := &testExpr{line: line, x: x, name: p.expectName()}
	for p.takeOp(".") {
		t.name += "." + p.expectName()
	}
	switch k := p.cur().kind; {
	case p.isOp("("):
		t.args = p.call(nil).args
	case k == tString, k == tInt, k == tFloat, p.isOp("["), p.isOp("{"),
		k == tName && !p.isName("else") && !p.isName("or") && !p.isName("and") && !p.isName("if") && !p.isName("not") && !p.isName("in"):
		if p.isName("is") {
			syntax(p.line(), "tests cannot be chained with 'is'")
		}
		defer p.deeper()()
		t.args = []expr{p.postfix(p.primary())}
	}
	if negated {
		return &notExpr{t}
	}
	return t
}

package jinja

// node is a statement.
type node interface{ run(e *evaluator, s *scope) }

// expr is an expression.
type expr interface {
	eval(e *evaluator, s *scope) Value
}

type (
	textNode  struct{ text Text }
	printNode struct {
		line int
		x    expr
	}
	ifNode struct {
		line      int
		branches  []branch
		otherwise []node
	}
	branch struct {
		cond expr
		body []node
	}
	forNode struct {
		line      int
		target    target
		list      expr
		cond      expr // nil: all
		recursive bool
		body      []node
		otherwise []node
	}
	setNode struct {
		line   int
		target target
		x      expr
	}
	captureNode struct { // set with a body
		line    int
		target  target
		filters expr // applied to captured; nil: none
		body    []node
	}
	filterNode struct {
		line    int
		filters expr
		body    []node
	}
	macroNode struct {
		line int
		m    *macro
	}
	callNode struct {
		line   int
		call   *callExpr
		caller *macro
	}
	withNode struct {
		line    int
		targets []target
		values  []expr
		body    []node
	}
	breakNode    struct{}
	continueNode struct{}
)

// macro is what is defined by macro, or the body of a call block.
type macro struct {
	name     string
	params   []string
	defaults []expr // nil where there is none
	body     []node
	varargs  bool // the body mentions varargs, kwargs, caller
	kwargs   bool
	caller   bool
}

// target is what is assigned to: a name, an attribute of a namespace, or several.
type target struct {
	name, attr string
	parts      []target
}

type (
	constExpr struct{ v Value }
	nameExpr  struct{ name string }
	listExpr  struct {
		items []expr
		look  look
	}
	dictExpr struct{ keys, values []expr }
	attrExpr struct {
		x    expr
		name string
	}
	itemExpr  struct{ x, key expr }
	sliceExpr struct{ from, to, step expr } // only as a key
	callExpr  struct {
		line       int
		f          expr
		args       []expr
		named      []namedExpr
		list, map_ expr // *args and **kwargs
	}
	namedExpr struct {
		name string
		x    expr
	}
	filterExpr struct {
		line  int
		x     expr // nil: what was captured
		name  string
		args  []expr
		named []namedExpr
	}
	testExpr struct {
		line int
		x    expr
		name string
		args []expr
	}
	notExpr  struct{ x expr }
	signExpr struct {
		op byte
		x  expr
	}
	binExpr struct {
		op   string
		a, b expr
	}
	compareExpr struct {
		x    expr
		ops  []string
		args []expr
	}
	logicExpr struct {
		and  bool
		a, b expr
	}
	condExpr struct{ cond, then, otherwise expr }
)

package grammar

import (
	"errors"
	"fmt"
)

// Limits on what is compiled.
const (
	maxNodes = 1 << 16 // of an automaton
	maxEdges = 1 << 19 // that take a byte
	maxStack = 200     // nested rules while reading
)

// node is a place in a rule.
type node struct {
	rule  int32
	end   bool // the rule is complete here
	free  bool // plain characters lead back here, each counted
	edges []edge
	calls []call
	eps   []int32

	// height is the least number of rules that have to be stacked on this one to reach
	// its end; -1 if it cannot be reached.
	height int
}

// edge takes a byte from lo to hi.
type edge struct {
	lo, hi byte
	count  bool // counts, if the rule's maximum allows it
	need   bool // open only once the rule's minimum has been counted
	room   bool // open only as long as more may be counted
	to     int32
}

// call reads what a rule describes and continues at to.
type call struct {
	rule  int32
	to    int32
	count bool // as for edges
	need  bool
}

// rule is an automaton that others call.
type rule struct {
	start, end int32
	min, max   int // of what it counts; max -1: no bound
}

// compiler collects rules.
type compiler struct {
	nodes []node
	rules []rule

	space    int32            // the rule of white space, -1 until needed; likewise:
	number   int32            // any number
	integer  int32            // any whole number
	texts    map[[2]int]int32 // strings, by least and most characters
	anything map[bool]int32   // any value
	memo     map[schemaKey]int32
	sets     map[string]int32 // rules of characters in patterns
	patterns int              // size of the patterns so far, even if nothing is left of them
	compared int              // amount compared so far to tell schemas apart
	edges    int              // that take a byte
	meter    *meter
	err      error
}

func newCompiler(m *meter) *compiler {
	return &compiler{meter: m, space: -1, number: -1, integer: -1, texts: map[[2]int]int32{}, anything: map[bool]int32{}, memo: map[schemaKey]int32{}, sets: map[string]int32{}}
}

// begin makes a rule of two unconnected nodes.
func (c *compiler) begin(least, most int) int32 {
	r := int32(len(c.rules))
	c.rules = append(c.rules, rule{min: least, max: most})
	start, end := c.node(r), c.node(r)
	c.rules[r].start, c.rules[r].end = start, end
	c.nodes[end].end = true
	return r
}

func (c *compiler) node(r int32) int32 {
	if len(c.nodes) >= maxNodes {
		// Compiling continues in the last node and fails at the end.
		c.fail(fmt.Errorf("the grammar needs more than %d states", maxNodes))
		return int32(len(c.nodes) - 1)
	}
	_ = c.look(1) // an error stays in c.err
	c.nodes = append(c.nodes, node{rule: r})
	return int32(len(c.nodes) - 1)
}

func (c *compiler) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

// look charges n units of work.
func (c *compiler) look(n int) error {
	err := c.meter.look(n)
	if err != nil {
		c.fail(err)
	}
	return err
}

func (c *compiler) edge(from, to int32, lo, hi byte) {
	if c.edges++; c.edges > maxEdges {
		c.fail(fmt.Errorf("the grammar needs more than %d edges", maxEdges))
		return
	}
	c.nodes[from].edges = append(c.nodes[from].edges, edge{lo: lo, hi: hi, to: to})
}

func (c *compiler) skip(from, to int32) {
	c.nodes[from].eps = append(c.nodes[from].eps, to)
}

func (c *compiler) call(from, to, r int32) {
	c.nodes[from].calls = append(c.nodes[from].calls, call{rule: r, to: to})
}

// text reads a text and returns where it ends.
func (c *compiler) text(from int32, s string) int32 {
	for i := 0; i < len(s) && c.err == nil; i++ {
		next := c.node(c.nodes[from].rule)
		c.edge(from, next, s[i], s[i])
		from = next
	}
	return from
}

// words reads one of the texts, which share the nodes of common prefixes.
func (c *compiler) words(from, to int32, list []string) {
	type place struct {
		at int32
		b  byte
	}
	next := map[place]int32{}
	for _, s := range list {
		at := from
		for i := 0; i < len(s) && c.err == nil; i++ {
			p := place{at, s[i]}
			n, ok := next[p]
			if !ok {
				n = c.node(c.nodes[from].rule)
				c.edge(at, n, s[i], s[i])
				next[p] = n
			}
			at = n
		}
		c.skip(at, to)
	}
}

// then calls a rule and returns the node after it.
func (c *compiler) then(from, r int32) int32 {
	to := c.node(c.nodes[from].rule)
	c.call(from, to, r)
	return to
}

// either makes a rule read whatever one of the others describes.
func (c *compiler) either(r int32, of ...int32) {
	for _, x := range of {
		c.call(c.rules[r].start, c.rules[r].end, x)
	}
}

// finish checks the rules and finds out what can be completed.
func (c *compiler) finish(start int32) error {
	if c.err != nil {
		return c.err
	}
	if err := c.checkLeft(); err != nil {
		return err
	}
	if c.measure(); c.err != nil {
		return c.err
	}
	if h := c.nodes[c.rules[start].start].height; h < 0 || h >= maxStack {
		return errors.New("nothing satisfies it")
	}
	return nil
}

// checkLeft refuses rules that call themselves before anything is read: reading would
// never begin.
func (c *compiler) checkLeft() error {
	empty := make([]bool, len(c.rules)) // rules that may read nothing
	for changed := true; changed; {
		changed = false
		for r := range c.rules {
			if !empty[r] && c.reaches(int32(r), empty) {
				empty[r], changed = true, true
			}
		}
	}
	const (
		unseen = iota
		open
		done
	)
	state := make([]uint8, len(c.rules))
	var visit func(r int32, depth int) error
	visit = func(r int32, depth int) error {
		state[r] = open
		for called := range c.left(r, empty) {
			switch {
			case state[called] == open:
				return errors.New("it refers to itself with nothing in between")
			case depth > maxStack:
				return fmt.Errorf("references lead to each other %d times", maxStack)
			case state[called] == unseen:
				if err := visit(called, depth+1); err != nil {
					return err
				}
			}
		}
		state[r] = done
		return nil
	}
	for r := range c.rules {
		if state[r] == unseen {
			if err := visit(int32(r), 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// before visits the nodes of a rule that are reached without reading a byte.
func (c *compiler) before(r int32, empty []bool, visit func(n int32)) {
	seen := map[int32]bool{}
	todo := []int32{c.rules[r].start}
	for len(todo) > 0 {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if seen[n] {
			continue
		}
		seen[n] = true
		if c.look(1+len(c.nodes[n].eps)+len(c.nodes[n].calls)) != nil {
			return // compiling fails
		}
		visit(n)
		todo = append(todo, c.nodes[n].eps...)
		for _, x := range c.nodes[n].calls {
			if empty[x.rule] {
				todo = append(todo, x.to)
			}
		}
	}
}

func (c *compiler) reaches(r int32, empty []bool) bool {
	found := false
	c.before(r, empty, func(n int32) { found = found || c.nodes[n].end })
	return found
}

func (c *compiler) left(r int32, empty []bool) map[int32]bool {
	out := map[int32]bool{}
	c.before(r, empty, func(n int32) {
		for _, x := range c.nodes[n].calls {
			out[x.rule] = true
		}
	})
	return out
}

// measure finds the height of every node: it visits nodes in order of height, from the
// ends of rules backwards.
func (c *compiler) measure() {
	type caller struct{ from, rule, to int32 }
	into := make([][]int32, len(c.nodes)) // by bytes or nothing
	returns := make([][]caller, len(c.nodes))
	calls := make([][]caller, len(c.rules))
	levels := make([][]int32, maxStack+1)
	for i := range c.nodes {
		n := &c.nodes[i]
		n.height = -1
		if n.end {
			levels[0] = append(levels[0], int32(i))
		}
		for _, e := range n.edges {
			into[e.to] = append(into[e.to], int32(i))
		}
		for _, to := range n.eps {
			into[to] = append(into[to], int32(i))
		}
		for _, x := range n.calls {
			k := caller{int32(i), x.rule, x.to}
			returns[x.to] = append(returns[x.to], k)
			calls[x.rule] = append(calls[x.rule], k)
		}
	}
	for h := range levels {
		for i := 0; i < len(levels[h]); i++ {
			id := levels[h][i]
			n := &c.nodes[id]
			if n.height >= 0 {
				continue
			}
			n.height = h
			if c.look(1+len(into[id])+len(returns[id])) != nil {
				return // compiling fails
			}
			levels[h] = append(levels[h], into[id]...)
			for _, k := range returns[id] {
				if below := c.nodes[c.rules[k.rule].start].height; below >= 0 && below < maxStack {
					at := max(h, below+1)
					levels[at] = append(levels[at], k.from)
				}
			}
			if c.rules[n.rule].start == id && h < maxStack {
				for _, k := range calls[n.rule] {
					if c.nodes[k.to].height >= 0 {
						levels[h+1] = append(levels[h+1], k.from)
					}
				}
			}
		}
	}
}

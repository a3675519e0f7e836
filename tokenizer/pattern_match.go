package tokenizer

import (
	"fmt"
	"math"
	"slices"
	"unicode/utf8"
)

// pattern is a compiled pattern. It is matched by backtracking, trying
// alternatives in order, as Oniguruma does.
//
// Whether the rest of a pattern matches from an instruction at a position does not
// depend on anything that happened before. When backtracking takes more than a few
// steps per byte, the matcher therefore notes every pair of instruction and
// position that has failed and never tries it again: the time is O(length of the
// text), with one word of memory per byte, for every pattern and text.
type pattern struct {
	code   []instr
	memos  int // bits of notes per position
	first  firstBytes
	hungry bool // cannot match without taking a character
	ruby   bool // has parts that only Oniguruma reads like this
}

type opcode uint8

const (
	opChar   opcode = iota // one character of set
	opRun                  // min to max characters of set, as many as possible
	opAlt                  // alternatives
	opJump                 // go on at next
	opLook                 // the code that follows matches here, or not; go on at next
	opAhead                // the next character is in set, or not
	opBehind               // the previous character is in set, or not
	opAssert               // an anchor or a word edge
	opMatch                // the end of the pattern or of an opLook
)

// instr continues with the next instruction, unless it says otherwise.
type instr struct {
	op         opcode
	assert     patternOp
	set        *charSet
	min, max   int
	possessive bool
	negated    bool
	next       int32
	alts       []alternative
	memo       int8 // bit of the note that the rest fails here, or -1
	good       int8 // inside a look: bit of the note that it matches here, or -1
}

type alternative struct {
	pc    int32
	first firstBytes
	empty bool // may match without a character
}

// firstBytes holds the bytes that a match can start with.
type firstBytes [256]bool

const maxInstr = 1 << 12

// compilePattern compiles a pattern in the syntax of Oniguruma.
func compilePattern(text string) (*pattern, error) {
	root, ruby, err := parsePattern(text)
	p := &pattern{ruby: ruby}
	if err == nil {
		err = p.compile(root, false)
	}
	if err != nil {
		return nil, fmt.Errorf("compile pattern %.200q: %w", text, err)
	}
	p.add(instr{op: opMatch})
	p.hungry = !root.canBeEmpty()
	root.addFirst(&p.first)
	return p, nil
}

func (p *pattern) add(in instr) int {
	in.memo, in.good = -1, -1
	p.code = append(p.code, in)
	return len(p.code) - 1
}

// note allots the note bits of the instruction at pc.
func (p *pattern) note(pc int, good bool) error {
	in := &p.code[pc]
	in.memo = int8(p.memos)
	p.memos++
	if good {
		in.good = int8(p.memos)
		p.memos++
	}
	if p.memos > 64 {
		return unsupported("a pattern of more than 64 choices")
	}
	return nil
}

// compile appends the code of n; inLook says that it is inside a look.
func (p *pattern) compile(n *patternNode, inLook bool) error {
	if len(p.code) > maxInstr {
		return unsupported("a pattern of more than %d instructions", maxInstr)
	}
	switch n.op {
	case patClass:
		p.add(instr{op: opChar, set: n.set})
	case patSeq:
		for _, sub := range n.subs {
			if err := p.compile(sub, inLook); err != nil {
				return err
			}
		}
	case patAlt:
		return p.compileAlt(inLook, n.subs...)
	case patRepeat:
		return p.compileRepeat(n, inLook)
	case patOptional:
		if n.lazy {
			return p.compileAlt(inLook, nil, n.subs[0])
		}
		return p.compileAlt(inLook, n.subs[0], nil)
	case patAgain:
		p.add(instr{op: opJump, next: int32(n.min)})
	case patLook:
		body := n.subs[0]
		for body.op == patSeq && len(body.subs) == 1 {
			body = body.subs[0]
		}
		if body.op == patClass {
			p.add(instr{op: opAhead, set: body.set, negated: n.negated})
			return nil
		}
		pc := p.add(instr{op: opLook, negated: n.negated})
		if err := p.note(pc, true); err != nil {
			return err
		}
		if err := p.compile(body, true); err != nil {
			return err
		}
		p.code[pc].next = int32(p.add(instr{op: opMatch}) + 1)
	case patBehind:
		p.add(instr{op: opBehind, set: n.set, negated: n.negated})
	default:
		p.add(instr{op: opAssert, assert: n.op, set: n.set, negated: n.negated})
	}
	return nil
}

// compileAlt appends alternatives; a nil one matches only the empty text.
func (p *pattern) compileAlt(inLook bool, subs ...*patternNode) error {
	pc := p.add(instr{op: opAlt})
	if err := p.note(pc, inLook); err != nil {
		return err
	}
	var ends []int
	for _, sub := range subs {
		a := alternative{pc: int32(len(p.code)), empty: true}
		if sub != nil {
			if err := p.compile(sub, inLook); err != nil {
				return err
			}
			a.empty = sub.canBeEmpty()
			sub.addFirst(&a.first)
		}
		ends = append(ends, p.add(instr{op: opJump}))
		p.code[pc].alts = append(p.code[pc].alts, a)
	}
	for _, end := range ends {
		p.code[end].next = int32(len(p.code))
	}
	return nil
}

func (p *pattern) compileRepeat(n *patternNode, inLook bool) error {
	body := n.subs[0]
	if body.op == patClass && (!n.lazy || n.min == n.max) {
		pc := p.add(instr{op: opRun, set: body.set, min: n.min, max: n.max, possessive: n.possessive || n.min == n.max})
		if p.code[pc].possessive {
			return nil
		}
		return p.note(pc, inLook)
	}
	for range n.min {
		if err := p.compile(body, inLook); err != nil {
			return err
		}
	}
	if n.max == math.MaxInt {
		// again: body again | nothing
		again := len(p.code)
		loop := &patternNode{op: patSeq, subs: []*patternNode{body, {op: patAgain, min: again}}}
		return p.compile(&patternNode{op: patOptional, subs: []*patternNode{loop}, lazy: n.lazy}, inLook)
	}
	// Optional copies, each nested in the previous one.
	var rest *patternNode
	for range n.max - n.min {
		subs := []*patternNode{body}
		if rest != nil {
			subs = append(subs, rest)
		}
		rest = &patternNode{op: patOptional, subs: []*patternNode{{op: patSeq, subs: subs}}, lazy: n.lazy}
	}
	if rest == nil {
		return nil
	}
	return p.compile(rest, inLook)
}

// addFirst adds the bytes that a match of n can start with.
func (n *patternNode) addFirst(f *firstBytes) {
	switch n.op {
	case patClass:
		for c := range rune(utf8.RuneSelf) {
			f[c] = f[c] || n.set.has(c)
		}
		for c := utf8.RuneSelf; c < 256; c++ {
			f[c] = true // close enough
		}
	case patSeq:
		for _, sub := range n.subs {
			sub.addFirst(f)
			if !sub.canBeEmpty() {
				break
			}
		}
	case patAlt, patRepeat, patOptional:
		for _, sub := range n.subs {
			sub.addFirst(f)
		}
	}
}

// patternSearch is the memory of one search.
type patternSearch struct {
	p     *pattern
	text  string
	stack []choice
	steps int // taken so far
	look  int // number of steps at which to check again what the search may take

	careful bool     // notes are taken
	notes   []uint64 // by position relative to from: bits of memo and good
	from    int
	ends    map[*charSet][]int32 // careful: where the runs of a possessive set end
}

// choice is a place to backtrack to.
type choice struct {
	kind choiceKind
	pc   int32
	pos  int32
	arg  int32 // of a run: the lowest end that it may have; of alternatives: the next one
}

type choiceKind uint8

const (
	giveBack  choiceKind = iota // a run: one character less
	tryNext                     // the next alternative
	leaveLoop                   // careful: a run that took a character here
	noteFail                    // careful: nothing is left to try
)

// stepsPerByte is how many steps a search may take per byte before it takes notes.
const stepsPerByte = 32

// find appends the matches in text.
func (p *pattern) find(s *scratch, dst []piece, text string) []piece {
	s.search = patternSearch{p: p, text: text, stack: s.search.stack[:0]}
	dst = s.search.all(s, dst)
	s.search.text, s.search.notes, s.search.ends = "", nil, nil
	return dst
}

// all appends the matches in the text of e.
func (e *patternSearch) all(s *scratch, dst []piece) []piece {
	p, text := e.p, e.text
	last := -1
	for at := 0; at <= len(text); {
		if p.hungry && (at == len(text) || !p.first[text[at]]) {
			if at == len(text) || s.spent(1) {
				break
			}
			at += runeLen(text, at)
			continue
		}
		end, ok := e.run(s, 0, at)
		if !e.careful && e.exhausted(at) {
			e.takeNotes(at)
			continue
		}
		if s.spent(max(end-at, 1)) {
			break
		}
		switch {
		case !ok:
		case end > at:
			dst = append(dst, piece{at, end})
			at, last = end, end
			continue
		case at != last:
			// An empty match where the previous match ends does not count.
			dst = append(dst, piece{at, at})
			last = at
		}
		if at == len(text) {
			break
		}
		at += runeLen(text, at)
	}
	return dst
}

// exhausted reports whether a search whose current match starts at pos has taken too
// many steps to go on without notes.
func (e *patternSearch) exhausted(pos int) bool { return e.steps > 1<<12+stepsPerByte*pos }

// takeNotes makes the search careful from pos on.
func (e *patternSearch) takeNotes(pos int) {
	e.careful = true
	e.from = pos
	e.notes = make([]uint64, len(e.text)-pos+1)
	e.ends = make(map[*charSet][]int32)
}

func (e *patternSearch) noted(bit int8, pos int) bool {
	return bit >= 0 && e.notes[pos-e.from]>>bit&1 != 0
}

func (e *patternSearch) note(bit int8, pos int) {
	if bit >= 0 {
		e.notes[pos-e.from] |= 1 << bit
	}
}

// run matches from the instruction pc at pos up to the next opMatch and returns
// the position there. It gives up when the search is exhausted or the call has to
// end.
func (e *patternSearch) run(s *scratch, pc, pos int) (end int, ok bool) {
	base := len(e.stack)
	start := pos
	code, text := e.p.code, e.text
	for {
		if e.steps++; e.steps >= e.look {
			e.look = e.steps + 1<<12
			if !e.careful && e.exhausted(start) || s.spent(1<<12) {
				e.stack = e.stack[:base]
				return 0, false
			}
		}
		in := &code[pc]
		alive := true
		switch in.op {
		case opChar:
			n := in.set.at(text, pos)
			alive = n > 0
			pos += n
			pc++
		case opRun:
			var done bool
			if pos, done, alive = e.startRun(in, pc, pos); done {
				return e.succeed(base, pos), true
			}
			pc++
		case opAlt:
			if e.careful {
				if e.noted(in.good, pos) {
					return e.succeed(base, pos), true
				}
				alive = !e.noted(in.memo, pos)
			}
			if alive {
				pc, alive = e.choose(in, pc, pos, 0)
			}
		case opJump:
			pc = int(in.next)
		case opLook:
			alive = e.lookAhead(s, in, pc, pos) != in.negated
			pc = int(in.next)
		case opAhead:
			alive = (in.set.at(text, pos) > 0) != in.negated
			pc++
		case opBehind:
			alive = in.set.before(text, pos) != in.negated
			pc++
		case opAssert:
			alive = in.holds(text, pos)
			pc++
		case opMatch:
			return e.succeed(base, pos), true
		}
		if !alive {
			if pc, pos, ok = e.back(base); !ok {
				return 0, false
			}
		}
	}
}

// succeed drops the choices above base, which all led to a match, and returns pos.
func (e *patternSearch) succeed(base, pos int) int {
	if e.careful {
		for _, c := range e.stack[base:] {
			if c.kind != giveBack { // whose position is not where its run begins
				e.note(e.p.code[c.pc].good, int(c.pos))
			}
		}
	}
	e.stack = e.stack[:base]
	return pos
}

// startRun takes as many characters as a run may and leaves a choice on the
// stack; done says that the rest is known to match.
func (e *patternSearch) startRun(in *instr, pc, pos int) (end int, done, ok bool) {
	low, n := in.set.run(e.text, pos, in.min)
	if n < in.min {
		return 0, false, false
	}
	switch {
	case in.min == in.max:
		return low, false, true
	case in.possessive && e.careful && in.max == math.MaxInt:
		return e.runEnd(in.set, low), false, true
	case in.possessive || !e.careful:
		end, n = in.set.run(e.text, low, in.max-in.min)
		e.steps += n
		if end > low && !in.possessive {
			e.stack = append(e.stack, choice{giveBack, int32(pc), int32(end), int32(low)})
		}
		return end, false, true
	}
	if in.max != math.MaxInt {
		if e.noted(in.good, pos) || e.noted(in.memo, pos) {
			return pos, e.noted(in.good, pos), false
		}
		e.stack = append(e.stack, choice{noteFail, int32(pc), int32(pos), 0})
		end, n = in.set.run(e.text, low, in.max-in.min)
		e.steps += n
		if end > low {
			e.stack = append(e.stack, choice{giveBack, int32(pc), int32(end), int32(low)})
		}
		return end, false, true
	}
	// With notes, an unbounded run is a loop whose every iteration is a choice.
	for {
		if e.noted(in.good, low) || e.noted(in.memo, low) {
			return low, e.noted(in.good, low), false
		}
		n = in.set.at(e.text, low)
		if n == 0 {
			e.stack = append(e.stack, choice{noteFail, int32(pc), int32(low), 0})
			return low, false, true
		}
		e.stack = append(e.stack, choice{leaveLoop, int32(pc), int32(low), 0})
		low += n
		e.steps++
	}
}

// choose goes to the first alternative from k on that can start here, and leaves a
// choice on the stack if there are more.
func (e *patternSearch) choose(in *instr, pc, pos, k int) (next int, ok bool) {
	viable := func() bool {
		for ; k < len(in.alts); k++ {
			if a := &in.alts[k]; a.empty || pos < len(e.text) && a.first[e.text[pos]] {
				return true
			}
		}
		return false
	}
	if !viable() {
		if e.careful {
			e.note(in.memo, pos)
		}
		return 0, false
	}
	next = int(in.alts[k].pc)
	k++
	if viable() {
		e.stack = append(e.stack, choice{tryNext, int32(pc), int32(pos), int32(k)})
	} else if e.careful {
		e.stack = append(e.stack, choice{noteFail, int32(pc), int32(pos), 0})
	}
	return next, true
}

// back goes back to the last choice above base.
func (e *patternSearch) back(base int) (pc, pos int, ok bool) {
	for len(e.stack) > base {
		c := &e.stack[len(e.stack)-1]
		e.steps++
		switch in := &e.p.code[c.pc]; c.kind {
		case giveBack:
			_, n := utf8.DecodeLastRuneInString(e.text[c.arg:c.pos])
			c.pos -= int32(n)
			pc, pos = int(c.pc)+1, int(c.pos)
			if c.pos == c.arg {
				e.stack = e.stack[:len(e.stack)-1]
			}
			return pc, pos, true
		case leaveLoop:
			c.kind = noteFail
			return int(c.pc) + 1, int(c.pos), true
		case noteFail:
			e.note(in.memo, int(c.pos))
			e.stack = e.stack[:len(e.stack)-1]
		case tryNext:
			pc, pos = int(c.pc), int(c.pos)
			k := int(c.arg)
			e.stack = e.stack[:len(e.stack)-1]
			if pc, ok = e.choose(in, pc, pos, k); ok {
				return pc, pos, true
			}
		}
	}
	return 0, 0, false
}

// lookAhead reports whether the code after an opLook matches at pos.
func (e *patternSearch) lookAhead(s *scratch, in *instr, pc, pos int) bool {
	if e.careful {
		if e.noted(in.good, pos) {
			return true
		}
		if e.noted(in.memo, pos) {
			return false
		}
	}
	_, ok := e.run(s, pc+1, pos)
	if e.careful {
		if ok {
			e.note(in.good, pos)
		} else {
			e.note(in.memo, pos)
		}
	}
	return ok
}

// runEnd returns the end of the run of characters of set that contains pos.
func (e *patternSearch) runEnd(set *charSet, pos int) int {
	ends, ok := e.ends[set]
	if !ok {
		for i := e.from; i < len(e.text); {
			if end, n := set.run(e.text, i, math.MaxInt); n > 0 {
				ends = append(ends, int32(end))
				i = end
			} else {
				i += runeLen(e.text, i)
			}
		}
		e.ends[set] = ends
	}
	if set.at(e.text, pos) == 0 {
		return pos
	}
	k, _ := slices.BinarySearch(ends, int32(pos+1))
	return int(ends[k])
}

// holds reports whether the anchor or word edge holds at pos.
func (in *instr) holds(text string, pos int) bool {
	switch in.assert {
	case patLineStart:
		return pos == 0 || text[pos-1] == '\n' && pos < len(text)
	case patLineEnd:
		return pos == len(text) || text[pos] == '\n'
	case patTextStart:
		return pos == 0
	case patTextEnd:
		return pos == len(text)
	}
	edge := in.set.before(text, pos) != (in.set.at(text, pos) > 0)
	return edge != in.negated
}

package grammar

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits on the patterns of schemas.
const (
	maxPatternStates = 1 << 14
	maxRepeat        = 1000
)

// charset is a set of characters as ascending ranges: lo, hi, lo, hi, …
type charset []rune

// newCharset sorts ranges and joins them.
func newCharset(ranges ...rune) charset {
	type span struct{ lo, hi rune }
	var list []span
	for i := 0; i+1 < len(ranges); i += 2 {
		list = append(list, span{ranges[i], ranges[i+1]})
	}
	slices.SortFunc(list, func(a, b span) int { return int(a.lo - b.lo) })
	var out charset
	for _, x := range list {
		if n := len(out); n > 0 && x.lo <= out[n-1]+1 {
			out[n-1] = max(out[n-1], x.hi)
			continue
		}
		out = append(out, x.lo, x.hi)
	}
	return out
}

func (s charset) negated() charset {
	out, next := charset{}, rune(0)
	for i := 0; i < len(s); i += 2 {
		if s[i] > next {
			out = append(out, next, s[i]-1)
		}
		next = s[i+1] + 1
	}
	if next <= unicode.MaxRune {
		out = append(out, next, unicode.MaxRune)
	}
	return out
}

// The classes of ECMA 262.
var (
	anyChar    = charset{0, unicode.MaxRune}
	notLineEnd = newCharset('\n', '\n', '\r', '\r', 0x2028, 0x2029).negated()
	digitChars = charset{'0', '9'}
	wordChars  = newCharset('0', '9', 'A', 'Z', '_', '_', 'a', 'z')
	spaceChars = newCharset('\t', '\r', ' ', ' ', 0xa0, 0xa0, 0x1680, 0x1680, 0x2000, 0x200a, 0x2028, 0x2029, 0x202f, 0x202f, 0x205f, 0x205f, 0x3000, 0x3000, 0xfeff, 0xfeff)
)

// piece is a part of a pattern.
type piece struct {
	op       pieceOp
	set      charset
	subs     []*piece
	min, max int // of repetitions; max -1: no bound
}

type pieceOp int

const (
	opChars pieceOp = iota
	opSequence
	opChoice
	opRepeat
	opBegin // of the text
	opEnd
)

// patternParser reads the regular expressions of ECMA 262 with the flag u, as far as they
// are regular: lookaround, backreferences and word boundaries are refused.
type patternParser struct {
	text   string
	at     int
	depth  int
	ranges int // of characters, in properties
}

func (p *patternParser) parse() (*piece, error) {
	out, err := p.choice()
	if err == nil && p.at < len(p.text) {
		err = errors.New("a ) that nothing opens")
	}
	return out, err
}

func (p *patternParser) has(s string) bool {
	if !strings.HasPrefix(p.text[p.at:], s) {
		return false
	}
	p.at += len(s)
	return true
}

// next reads a character.
func (p *patternParser) next() (rune, error) {
	if p.at == len(p.text) {
		return 0, errors.New("it ends too early")
	}
	r, n := utf8.DecodeRuneInString(p.text[p.at:])
	p.at += n
	return r, nil
}

func (p *patternParser) choice() (*piece, error) {
	if p.depth++; p.depth > maxNesting {
		return nil, fmt.Errorf("groups within groups %d times", maxNesting)
	}
	defer func() { p.depth-- }()
	out := &piece{op: opChoice}
	for {
		s, err := p.sequence()
		if err != nil {
			return nil, err
		}
		if out.subs = append(out.subs, s); !p.has("|") {
			return out, nil
		}
	}
}

func (p *patternParser) sequence() (*piece, error) {
	out := &piece{op: opSequence}
	for p.at < len(p.text) && p.text[p.at] != '|' && p.text[p.at] != ')' {
		x, err := p.atom()
		if err != nil {
			return nil, err
		}
		least, most, is, err := p.quantifier()
		switch {
		case err != nil:
			return nil, err
		case is && (x.op == opBegin || x.op == opEnd):
			return nil, errors.New("an anchor that is repeated")
		case is:
			p.has("?") // lazy: the same texts
			x = &piece{op: opRepeat, subs: []*piece{x}, min: least, max: most}
		}
		out.subs = append(out.subs, x)
	}
	return out, nil
}

// quantifier reads a quantifier, if there is one.
func (p *patternParser) quantifier() (least, most int, is bool, err error) {
	switch {
	case p.has("*"):
		return 0, -1, true, nil
	case p.has("+"):
		return 1, -1, true, nil
	case p.has("?"):
		return 0, 1, true, nil
	}
	end := strings.IndexByte(p.text[p.at:], '}')
	if end < 0 || p.text[p.at] != '{' {
		return 0, 0, false, nil
	}
	a, b, two := strings.Cut(p.text[p.at+1:p.at+end], ",")
	digits := func(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
	if !digits(a) || two && b != "" && !digits(b) {
		return 0, 0, false, nil
	}
	p.at += end + 1
	least, err = strconv.Atoi(a)
	switch most = least; {
	case two && b == "":
		most = -1
	case two && err == nil:
		most, err = strconv.Atoi(b)
	}
	switch {
	case err != nil || least > maxRepeat || most > maxRepeat:
		return 0, 0, false, fmt.Errorf("more than %d repetitions", maxRepeat)
	case most >= 0 && most < least:
		return 0, 0, false, fmt.Errorf("{%d,%d}: the bounds are the wrong way round", least, most)
	}
	return least, most, true, nil
}

func (p *patternParser) atom() (*piece, error) {
	before := p.at
	if _, _, is, err := p.quantifier(); is || err != nil {
		return nil, fmt.Errorf("%.20q: there is nothing to repeat", p.text[before:])
	}
	r, err := p.next()
	if err != nil {
		return nil, err
	}
	switch r {
	case '^':
		return &piece{op: opBegin}, nil
	case '$':
		return &piece{op: opEnd}, nil
	case '.':
		return &piece{set: notLineEnd}, nil
	case '(':
		return p.group()
	case '[':
		set, err := p.class()
		return &piece{set: set}, err
	case '\\':
		set, err := p.escape(false)
		return &piece{set: set}, err
	}
	return &piece{set: charset{r, r}}, nil
}

func (p *patternParser) group() (*piece, error) {
	switch {
	case p.has("?:"):
	case p.has("?="), p.has("?!"):
		return nil, errors.New("lookahead is not supported")
	case p.has("?<="), p.has("?<!"):
		return nil, errors.New("lookbehind is not supported")
	case p.has("?<"):
		end := strings.IndexByte(p.text[p.at:], '>')
		if end < 1 {
			return nil, errors.New("a group whose name does not end")
		}
		p.at += end + 1
	case p.has("?"):
		return nil, fmt.Errorf("the group (?%.1s is not supported", p.text[p.at:])
	}
	out, err := p.choice()
	if err == nil && !p.has(")") {
		err = errors.New("a ( that nothing closes")
	}
	return out, err
}

func (p *patternParser) class() (charset, error) {
	negated := p.has("^")
	var ranges charset
	for !p.has("]") {
		lo, err := p.member()
		if err != nil {
			return nil, err
		}
		if rest := p.text[p.at:]; !strings.HasPrefix(rest, "-") || strings.HasPrefix(rest, "-]") {
			ranges = append(ranges, lo...)
			continue
		}
		p.at++
		hi, err := p.member()
		if err != nil {
			return nil, err
		}
		if len(lo) != 2 || lo[0] != lo[1] || len(hi) != 2 || hi[0] != hi[1] || hi[0] < lo[0] {
			return nil, errors.New("a range in [] whose ends are not two characters, the lesser first")
		}
		ranges = append(ranges, lo[0], hi[0])
	}
	set := newCharset(ranges...)
	if negated {
		set = set.negated()
	}
	return set, nil
}

// member reads a character of a class, or a class within it.
func (p *patternParser) member() (charset, error) {
	r, err := p.next()
	if err != nil {
		return nil, errors.New("a [ that nothing closes")
	}
	if r == '\\' {
		return p.escape(true)
	}
	return charset{r, r}, nil
}

var (
	escapedClasses = map[rune]charset{
		'd': digitChars, 'D': digitChars.negated(), 'w': wordChars, 'W': wordChars.negated(), 's': spaceChars, 'S': spaceChars.negated(),
	}
	escapedChars = map[rune]rune{'t': '\t', 'n': '\n', 'v': '\v', 'f': '\f', 'r': '\r'}
)

// escape reads what follows a backslash.
func (p *patternParser) escape(inClass bool) (charset, error) {
	r, err := p.next()
	if err != nil {
		return nil, err
	}
	if set, ok := escapedClasses[r]; ok {
		return set, nil
	}
	if x, ok := escapedChars[r]; ok {
		return charset{x, x}, nil
	}
	var x rune
	switch {
	case r == 'b' && inClass:
		x = '\b'
	case r == 'b' || r == 'B':
		return nil, errors.New("word borders are not supported")
	case r >= '1' && r <= '9' || r == 'k':
		return nil, errors.New("backreferences are not supported")
	case r == '0' && (p.at == len(p.text) || p.text[p.at] < '0' || p.text[p.at] > '9'):
		x = 0
	case r == 'x':
		x, err = p.hex(2)
	case r == 'u':
		x, err = p.unicode()
	case r == 'c' && p.at < len(p.text) && p.text[p.at] < utf8.RuneSelf && unicode.IsLetter(rune(p.text[p.at])):
		x = rune(p.text[p.at] % 32)
		p.at++
	case r == 'p' || r == 'P':
		return p.property(r == 'P')
	case r < utf8.RuneSelf && !unicode.IsLetter(r) && !unicode.IsDigit(r):
		x = r
	default:
		return nil, fmt.Errorf(`the escape \%c is not supported`, r)
	}
	return charset{x, x}, err
}

// hex reads n hexadecimal digits.
func (p *patternParser) hex(n int) (rune, error) {
	if len(p.text)-p.at >= n {
		if x, err := strconv.ParseUint(p.text[p.at:p.at+n], 16, 32); err == nil {
			p.at += n
			return rune(x), nil
		}
	}
	return 0, fmt.Errorf("an escape without its %d hexadecimal digits", n)
}

// unicode reads what follows \u.
func (p *patternParser) unicode() (rune, error) {
	var x rune
	var err error
	if p.has("{") {
		end := strings.IndexByte(p.text[p.at:], '}')
		if end < 1 || end > 6 {
			return 0, errors.New(`\u{ without 1 to 6 hexadecimal digits and }`)
		}
		x, err = p.hex(end)
		p.at++
	} else if x, err = p.hex(4); err == nil && x >= 0xd800 && x < 0xdc00 && p.has(`\u`) {
		var low rune
		if low, err = p.hex(4); low >= 0xdc00 && low <= 0xdfff {
			x = 0x10000 + (x-0xd800)<<10 + low - 0xdc00
		} // otherwise x stays half a character
	}
	if err == nil && !utf8.ValidRune(x) {
		err = errors.New(`\u: found half a character, or none`)
	}
	return x, err
}

// property reads what follows \p.
func (p *patternParser) property(negated bool) (charset, error) {
	end := strings.IndexByte(p.text[p.at:], '}')
	if end < 0 || !p.has("{") {
		return nil, errors.New(`\p without {}`)
	}
	name := p.text[p.at : p.at+end-1]
	p.at += end
	kind, value, ok := strings.Cut(name, "=")
	var table *unicode.RangeTable
	switch {
	case !ok:
		table = category(name)
	case kind == "General_Category" || kind == "gc":
		table = category(value)
	case kind == "Script" || kind == "sc":
		table = unicode.Scripts[value]
	}
	if table == nil {
		return nil, fmt.Errorf(`the property \p{%.40s} is not supported`, name)
	}
	var ranges []rune
	add := func(lo, hi, stride rune) {
		if stride == 1 {
			ranges = append(ranges, lo, hi)
			return
		}
		for r := lo; r <= hi; r += stride {
			ranges = append(ranges, r, r)
		}
	}
	for _, x := range table.R16 {
		add(rune(x.Lo), rune(x.Hi), rune(x.Stride))
	}
	for _, x := range table.R32 {
		add(rune(x.Lo), rune(x.Hi), rune(x.Stride))
	}
	set := newCharset(ranges...)
	if negated {
		set = set.negated()
	}
	if p.ranges += len(set) / 2; p.ranges > maxPatternStates {
		return nil, fmt.Errorf("its properties have more than %d ranges of characters", maxPatternStates)
	}
	return set, nil
}

func category(name string) *unicode.RangeTable {
	if short, ok := unicode.CategoryAliases[name]; ok {
		name = short
	}
	return unicode.Categories[name]
}

// patternState is a place in a pattern. Its edges take a character, nothing, or nothing but
// only where the text begins or ends.
type patternState struct {
	on         []patternEdge
	skip       []int
	begin, end []int
}

type patternEdge struct {
	set charset
	to  int
}

type patternStates struct {
	list []patternState
	full bool
}

func (s *patternStates) add() int {
	if len(s.list) >= maxPatternStates {
		s.full = true
		return len(s.list) - 1
	}
	s.list = append(s.list, patternState{})
	return len(s.list) - 1
}

// build adds a piece after a state and returns where it ends.
func (s *patternStates) build(p *piece, from int) int {
	if s.full {
		return from
	}
	switch p.op {
	case opSequence:
		for _, x := range p.subs {
			from = s.build(x, from)
		}
		return from
	case opRepeat:
		for range p.min {
			from = s.build(p.subs[0], from)
		}
		to := s.add()
		s.list[from].skip = append(s.list[from].skip, to)
		if p.max < 0 {
			loop := s.add()
			s.list[from].skip = append(s.list[from].skip, loop)
			end := s.build(p.subs[0], loop)
			s.list[end].skip = append(s.list[end].skip, loop, to)
		}
		for i := p.min; i < p.max && !s.full; i++ {
			from = s.build(p.subs[0], from)
			s.list[from].skip = append(s.list[from].skip, to)
		}
		return to
	}
	to := s.add()
	switch x := &s.list[from]; p.op {
	case opChars:
		x.on = append(x.on, patternEdge{p.set, to})
	case opBegin:
		x.begin = append(x.begin, to)
	case opEnd:
		x.end = append(x.end, to)
	case opChoice:
		for _, sub := range p.subs {
			first := s.add()
			s.list[from].skip = append(s.list[from].skip, first)
			last := s.build(sub, first)
			s.list[last].skip = append(s.list[last].skip, to)
		}
	}
	return to
}

// patternPlace is a state together with what anchors and lengths depend on.
type patternPlace struct {
	state        int
	begun, ended bool // a character was read; no more may come
	length       int  // of what was read, as far as bounds need it
}

// placeEdge leads from one place to another; set nil: without a character.
type placeEdge struct {
	set charset
	to  int
}

// places returns the places that a text of least to most characters (most -1: no bound) may
// go through if the pattern is found somewhere in it, as their edges. complete says where
// it may end.
func (s *patternStates) places(start, found, least, most int) (edges [][]placeEdge, complete []bool, err error) {
	index := map[patternPlace]int{}
	var list []patternPlace
	visit := func(p patternPlace) int {
		i, ok := index[p]
		if !ok {
			i = len(list)
			index[p] = i
			list = append(list, p)
		}
		return i
	}
	visit(patternPlace{state: start})
	for i := 0; i < len(list); i++ {
		if len(list) > maxPatternStates {
			return nil, nil, fmt.Errorf("it needs more than %d states", maxPatternStates)
		}
		p := list[i]
		x := &s.list[p.state]
		var out []placeEdge
		follow := func(states []int, ended bool) {
			for _, to := range states {
				next := p
				next.state, next.ended = to, p.ended || ended
				out = append(out, placeEdge{nil, visit(next)})
			}
		}
		follow(x.skip, false)
		follow(x.end, true)
		if !p.begun {
			follow(x.begin, false)
		}
		if next := p.length + 1; !p.ended && (most < 0 || next <= most) {
			if most < 0 {
				next = min(next, least)
			}
			for _, e := range x.on {
				if len(e.set) > 0 {
					out = append(out, placeEdge{e.set, visit(patternPlace{e.to, true, false, next})})
				}
			}
		}
		edges = append(edges, out)
		complete = append(complete, p.state == found && p.length >= least)
	}
	return edges, complete, nil
}

// pattern returns the rule of the JSON strings of least to most characters in which a
// regular expression is found. Characters are written as themselves where JSON allows it.
func (c *compiler) pattern(text string, least, most int) (int32, error) {
	parser := &patternParser{text: text}
	tree, err := parser.parse()
	if err != nil {
		return 0, err
	}
	s := &patternStates{}
	start, found := s.add(), s.add()
	anything := &piece{op: opRepeat, subs: []*piece{{set: anyChar}}, max: -1}
	end := s.build(&piece{op: opSequence, subs: []*piece{anything, tree, anything}}, start)
	s.list[end].skip = append(s.list[end].skip, found)
	if s.full {
		return 0, fmt.Errorf("it needs more than %d states", maxPatternStates)
	}
	edges, complete, err := s.places(start, found, least, most)
	if err != nil {
		return 0, err
	}
	if c.patterns += parser.ranges + len(s.list) + len(edges); c.patterns > maxNodes {
		return 0, fmt.Errorf("all patterns together need more than %d states", maxNodes)
	}
	live := livePlaces(edges, complete)
	r := c.begin(0, -1)
	if !live[0] {
		return r, nil // nothing
	}
	nodes := make([]int32, len(edges))
	for i := range nodes {
		if live[i] {
			nodes[i] = c.node(r)
		}
	}
	c.skip(c.text(c.rules[r].start, `"`), nodes[0])
	last := c.node(r)
	c.edge(last, c.rules[r].end, '"', '"')
	for i, out := range edges {
		if !live[i] || c.err != nil {
			continue
		}
		if complete[i] {
			c.skip(nodes[i], last)
		}
		for _, e := range out {
			switch {
			case !live[e.to]:
			case e.set == nil:
				c.skip(nodes[i], nodes[e.to])
			default:
				c.oneOf(nodes[i], nodes[e.to], e.set)
			}
		}
	}
	return r, nil
}

// livePlaces reports from which places a complete one can be reached.
func livePlaces(edges [][]placeEdge, complete []bool) []bool {
	into := make([][]int, len(edges))
	var todo []int
	for i, out := range edges {
		for _, e := range out {
			into[e.to] = append(into[e.to], i)
		}
		if complete[i] {
			todo = append(todo, i)
		}
	}
	live := make([]bool, len(edges))
	for len(todo) > 0 {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if !live[i] {
			live[i] = true
			todo = append(todo, into[i]...)
		}
	}
	return live
}

// oneOf reads a character of a set inside a JSON string. Sets with control characters or
// beyond ASCII become rules of their own, which all their places share.
func (c *compiler) oneOf(from, to int32, set charset) {
	if set[len(set)-1] < utf8.RuneSelf && set[0] >= ' ' {
		c.stringChars(from, to, set)
		return
	}
	key := fmt.Sprint(set)
	r, ok := c.sets[key]
	if !ok {
		r = c.begin(0, -1)
		c.stringChars(c.rules[r].start, c.rules[r].end, set)
		c.sets[key] = r
	}
	c.call(from, to, r)
}

// shortEscapes are the control characters that JSON has letters for.
const shortEscapes = "\b\f\n\r\t"

// stringChars reads a character of a set inside a JSON string.
func (c *compiler) stringChars(from, to int32, set charset) {
	escape, digits := int32(-1), [2]int32{-1, -1}
	child := func(at *int32, parent int32, text string) int32 {
		if *at < 0 {
			*at = c.text(parent, text)
		}
		return *at
	}
	for i := 0; i < len(set); i += 2 {
		lo, hi := set[i], set[i+1]
		for r := lo; r <= min(hi, 0x1f); r++ {
			at := child(&escape, from, `\`)
			if k := strings.IndexRune(shortEscapes, r); k >= 0 {
				c.edge(at, to, "bfnrt"[k], "bfnrt"[k])
				continue
			}
			at = child(&digits[r>>4], at, "u00"+string(rune('0'+r>>4)))
			d := "0123456789abcdef"[r&15]
			c.edge(at, to, d, d)
		}
		for _, r := range []rune{'"', '\\'} {
			if lo <= r && r <= hi {
				c.edge(child(&escape, from, `\`), to, byte(r), byte(r))
			}
		}
		for _, plain := range [][2]rune{{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, unicode.MaxRune}} {
			if a, b := max(lo, plain[0]), min(hi, plain[1]); a <= b {
				c.runes(from, to, a, b)
			}
		}
	}
}

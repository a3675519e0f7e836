package tokenizer

import (
	"errors"
	"fmt"
	"math"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Patterns of tokenizer.json and tekken.json are written in the syntax of Oniguruma
// (Ruby): Unicode classes, line anchors. This file parses the part of it that can
// be matched in linear time; pattern_match.go does the matching. Everything else is
// refused by name: back-references, lookbehind of more than one character,
// repetition of something that may be empty.

const (
	maxPatternLen    = 1 << 11
	maxPatternSets   = 1 << 8 // distinct classes
	maxPatternNest   = 50
	maxPatternRepeat = 1000 // a bound {n,m}
)

type patternOp uint8

const (
	patEmpty     patternOp = iota
	patClass               // one character of set
	patSeq                 // subs one after the other
	patAlt                 // the first of subs that leads to a match
	patRepeat              // subs[0], min to max times
	patLook                // subs[0] matches here, or not (negated)
	patBehind              // the previous character is in set, or not (negated)
	patLineStart           // ^
	patLineEnd             // $
	patTextStart           // \A
	patTextEnd             // \z
	patWordEdge            // \b, or \B (negated)
	patOptional            // subs[0] or nothing: made from a patRepeat
	patAgain               // back to instruction min: made from a patRepeat
)

// patternNode is a part of a pattern.
type patternNode struct {
	op         patternOp
	set        *charSet
	subs       []*patternNode
	min, max   int // max is math.MaxInt for no bound
	lazy       bool
	possessive bool
	negated    bool
}

// canBeEmpty reports whether n can match without taking a character.
func (n *patternNode) canBeEmpty() bool {
	switch n.op {
	case patClass:
		return false
	case patSeq:
		for _, sub := range n.subs {
			if !sub.canBeEmpty() {
				return false
			}
		}
		return true
	case patAlt:
		for _, sub := range n.subs {
			if sub.canBeEmpty() {
				return true
			}
		}
		return false
	case patRepeat:
		return n.min == 0 || n.subs[0].canBeEmpty()
	}
	return true
}

type patternParser struct {
	in   string
	at   int
	fold bool // (?i)
	nest int
	sets map[string]*charSet // by their ranges
	ruby bool                // has parts that the regular expressions of tekken.json read in another way
}

// parsePattern reads a pattern; ruby is that of the parser.
func parsePattern(pattern string) (n *patternNode, ruby bool, err error) {
	if len(pattern) > maxPatternLen {
		return nil, false, fmt.Errorf("%d bytes, expected at most %d", len(pattern), maxPatternLen)
	}
	if !utf8.ValidString(pattern) {
		return nil, false, errors.New("not UTF-8")
	}
	p := &patternParser{in: pattern, sets: make(map[string]*charSet)}
	n, err = p.alternatives()
	if err == nil && p.at < len(p.in) {
		err = errors.New("a closing parenthesis without an opening one")
	}
	return n, p.ruby, err
}

func (p *patternParser) rest() string { return p.in[p.at:] }

// take skips s if it comes next.
func (p *patternParser) take(s string) bool {
	if !strings.HasPrefix(p.rest(), s) {
		return false
	}
	p.at += len(s)
	return true
}

func (p *patternParser) next() rune {
	r, n := utf8.DecodeRuneInString(p.rest())
	p.at += n
	return r
}

// alternatives reads up to a closing parenthesis or the end.
func (p *patternParser) alternatives() (*patternNode, error) {
	if p.nest++; p.nest > maxPatternNest {
		return nil, fmt.Errorf("groups nested more than %d deep", maxPatternNest)
	}
	defer func(fold bool) { p.fold = fold; p.nest-- }(p.fold)
	// An option in the middle would apply only to what follows it.
	if p.take("(?i)") {
		p.fold = true
	} else if p.take("(?-i)") {
		p.fold = false
	}
	alt := &patternNode{op: patAlt}
	for {
		seq := &patternNode{op: patSeq}
		for p.at < len(p.in) && p.in[p.at] != '|' && p.in[p.at] != ')' {
			n, err := p.repeated()
			if err != nil {
				return nil, err
			}
			seq.subs = append(seq.subs, n)
		}
		alt.subs = append(alt.subs, seq)
		if !p.take("|") {
			break
		}
	}
	if len(alt.subs) == 1 {
		return alt.subs[0], nil
	}
	return alt, nil
}

// repeated reads one part and the repetition that follows it.
func (p *patternParser) repeated() (*patternNode, error) {
	if c := p.in[p.at]; c == '*' || c == '+' || c == '?' {
		return nil, fmt.Errorf("nothing to repeat before %c", c)
	}
	n, err := p.one()
	if err != nil {
		return nil, err
	}
	min, max, braces, err := p.repetition()
	if err != nil || min < 0 {
		return n, err
	}
	r := &patternNode{op: patRepeat, subs: []*patternNode{n}, min: min, max: max}
	switch {
	case p.take("?"):
		if braces && min == max {
			return nil, unsupported("? after a repetition in braces")
		}
		r.lazy = true
	case p.take("+"):
		if braces {
			// Only after *, + and ? a plus is possessive; after braces it repeats what
			// comes before it once more.
			if r.canBeEmpty() {
				return nil, unsupported("a repetition of what may be empty")
			}
			r = &patternNode{op: patRepeat, subs: []*patternNode{r}, min: 1, max: math.MaxInt}
			p.ruby = true
			break
		}
		if n.op != patClass {
			return nil, unsupported("a possessive repetition of more than one character")
		}
		r.possessive = true
	}
	if again, _, _, _ := p.repetition(); again >= 0 {
		return nil, unsupported("a repetition of a repetition")
	}
	if max > 1 && n.canBeEmpty() {
		return nil, unsupported("a repetition of what may be empty")
	}
	return r, nil
}

// repetition reads *, +, ? or {n,m}; min is -1 if there is none.
func (p *patternParser) repetition() (min, max int, braces bool, err error) {
	switch {
	case p.take("*"):
		return 0, math.MaxInt, false, nil
	case p.take("+"):
		return 1, math.MaxInt, false, nil
	case p.take("?"):
		return 0, 1, false, nil
	case !strings.HasPrefix(p.rest(), "{"):
		return -1, 0, false, nil
	}
	inside, _, closed := strings.Cut(p.rest()[1:], "}")
	low, high, comma := strings.Cut(inside, ",")
	digits := func(s string) bool { return strings.Trim(s, "0123456789") == "" }
	if !closed || !digits(low) || !digits(high) || low+high == "" {
		return -1, 0, false, nil // stands for itself
	}
	if low == "" {
		return 0, 0, false, unsupported("a repetition without a lower bound")
	}
	p.at += len(inside) + 2
	number := func(s string) int {
		n, err := strconv.Atoi(s)
		if err != nil {
			n = math.MaxInt
		}
		return n
	}
	min = number(low)
	switch {
	case !comma:
		max = min
	case high == "":
		max = math.MaxInt
	default:
		max = number(high)
	}
	if min > maxPatternRepeat || max > maxPatternRepeat && high != "" || min > max {
		return 0, 0, false, fmt.Errorf("repetition {%.40s}: expected bounds in order, up to %d", inside, maxPatternRepeat)
	}
	return min, max, true, nil
}

// one reads a part that a repetition can follow.
func (p *patternParser) one() (*patternNode, error) {
	switch c := p.next(); c {
	case '(':
		return p.group()
	case '[':
		return p.brackets()
	case '.':
		return p.class("^\n", false)
	case '^':
		return &patternNode{op: patLineStart}, nil
	case '$':
		return &patternNode{op: patLineEnd}, nil
	case '\\':
		return p.escape()
	default:
		return p.literal(c)
	}
}

func (p *patternParser) literal(r rune) (*patternNode, error) {
	return p.class(classRange(r, r), p.fold)
}

// group reads what follows an opening parenthesis.
func (p *patternParser) group() (*patternNode, error) {
	inside := func() (*patternNode, error) {
		n, err := p.alternatives()
		if err == nil && !p.take(")") {
			err = errors.New("a parenthesis is not closed")
		}
		return n, err
	}
	if !p.take("?") {
		return inside()
	}
	switch {
	case p.take(":"):
		return inside()
	case p.take("i:"), p.take("-i:"):
		defer func(fold bool) { p.fold = fold }(p.fold)
		p.fold = p.in[p.at-3:p.at] != "-i:"
		return inside()
	case p.take("="), p.take("!"):
		negated := p.in[p.at-1] == '!'
		n, err := inside()
		return &patternNode{op: patLook, subs: []*patternNode{n}, negated: negated}, err
	case p.take("<="), p.take("<!"):
		negated := p.in[p.at-1] == '!'
		n, err := inside()
		if err != nil {
			return nil, err
		}
		for n.op == patSeq && len(n.subs) == 1 {
			n = n.subs[0]
		}
		if n.op != patClass {
			return nil, unsupported("a lookbehind of other than one character")
		}
		return &patternNode{op: patBehind, set: n.set, negated: negated}, nil
	case p.take(">"):
		n, err := inside()
		if err != nil {
			return nil, err
		}
		for n.op == patSeq && len(n.subs) == 1 {
			n = n.subs[0]
		}
		if n.op == patClass {
			return n, nil
		}
		if n.op != patRepeat || n.lazy || n.subs[0].op != patClass {
			return nil, unsupported("an atomic group of more than a repeated character")
		}
		n.possessive = true
		return n, nil
	}
	return nil, unsupported("a group that starts with (?%.3s", p.rest())
}

// brackets reads a class in brackets, after the opening one.
func (p *patternParser) brackets() (*patternNode, error) {
	members, high, err := p.members()
	if err != nil {
		return nil, err
	}
	if raw, not := strings.CutPrefix(members, "^"); not && high {
		// If nothing beyond ASCII is left to negate, Oniguruma takes no character beyond
		// ASCII, though all of them belong to the class.
		ranges, err := classRanges(raw, p.fold)
		if err == nil && (len(ranges) == 0 || ranges[len(ranges)-1] < utf8.RuneSelf) {
			err = unsupported("a negated class of ASCII with a negated class inside it")
		}
		if err != nil {
			return nil, err
		}
	}
	// (?i) applies to the class as a whole, not to the classes inside it.
	return p.class(members, p.fold)
}

// members reads up to a closing bracket and returns what it has read as written inside
// brackets; high says that a negated class in it is part of every operand of &&.
func (p *patternParser) members() (_ string, high bool, err error) {
	if p.nest++; p.nest > maxPatternNest {
		return "", false, fmt.Errorf("groups and brackets nested more than %d deep", maxPatternNest)
	}
	defer func() { p.nest-- }()
	not := ""
	if p.take("^") {
		not = "^" // of the whole, intersections included
	}
	var members, outside strings.Builder // outside: what is not in every operand of && so far
	intersection, all := false, true
	operand := func() error {
		out, err := negatedClass(members.String())
		outside.WriteString(out)
		all, high = all && high, false
		members.Reset()
		return err
	}
	first := p.at
	for {
		switch {
		case p.at == len(p.in):
			return "", false, errors.New("a bracket is not closed")
		case p.in[p.at] == ']' && p.at > first: // one that comes first stands for itself
			p.at++
			if !intersection {
				return not + members.String(), high, nil
			}
			if err := operand(); err != nil {
				return "", false, err
			}
			inside, err := negatedClass(outside.String())
			return not + inside, all, err
		case p.take("&&"):
			p.ruby, intersection = true, true
			if err := operand(); err != nil {
				return "", false, err
			}
			continue
		case p.take("["):
			class, negated, err := p.nested()
			if err != nil {
				return "", false, err
			}
			high = high || negated
			members.WriteString(class)
			continue
		}
		lo, class, err := p.member()
		if err != nil {
			return "", false, err
		}
		if class != "" {
			members.WriteString(class)
			continue
		}
		hi := lo
		if r := p.rest(); len(r) > 1 && r[0] == '-' && r[1] != ']' && !strings.HasPrefix(r[1:], "&&") {
			p.at++
			if hi, class, err = p.member(); err != nil {
				return "", false, err
			}
			if class != "" || hi < lo {
				return "", false, fmt.Errorf("a range from %q that does not end in a later character", lo)
			}
		}
		members.WriteString(classRange(lo, hi))
	}
}

// nested reads a class in brackets inside brackets, after the opening one: its characters
// are added to those around it. negated says that it is, or has in it, a negated class.
func (p *patternParser) nested() (class string, negated bool, err error) {
	p.ruby = true
	if p.take(":") {
		name, _, closed := strings.Cut(p.rest(), ":]")
		members := posixClasses[strings.TrimPrefix(name, "^")]
		if !closed || members == "" {
			return "", false, unsupported("brackets that start with [:%.10s", p.rest())
		}
		p.at += len(name) + len(":]")
		if name[0] == '^' {
			members, err = negatedClass(members)
		}
		return members, false, err
	}
	members, high, err := p.members()
	if err != nil {
		return "", false, err
	}
	class, err = rangesClass(members)
	return class, high || strings.HasPrefix(members, "^"), err
}

// member reads a character or a class inside brackets.
func (p *patternParser) member() (r rune, class string, err error) {
	if strings.HasPrefix(p.rest(), "[") {
		return 0, "", unsupported("a range that ends in brackets")
	}
	if r = p.next(); r != '\\' {
		return r, "", nil
	}
	if p.at == len(p.in) {
		return 0, "", errors.New("a bracket is not closed")
	}
	switch e := p.next(); e {
	case 's', 'd':
		return 0, classNames[byte(e)], nil
	case 'w':
		return 0, bracketWord, nil
	case 'S', 'D':
		class, err = negatedClass(classNames[byte(e|0x20)])
		return 0, class, err
	case 'W':
		class, err = negatedClass(bracketWord)
		return 0, class, err
	case 'p', 'P':
		members, negated, err := p.property(e == 'P')
		if err == nil && negated {
			members, err = negatedClass(members)
		}
		return 0, members, err
	default:
		r, err = p.character(e)
		return r, "", err
	}
}

// escape reads what follows a backslash outside brackets.
func (p *patternParser) escape() (*patternNode, error) {
	if p.at == len(p.in) {
		return nil, errors.New("ends in a backslash")
	}
	switch e := p.next(); e {
	case 's', 'd', 'w':
		return p.class(classNames[byte(e)], false)
	case 'S', 'D', 'W':
		return p.class("^"+classNames[byte(e|0x20)], false)
	case 'p', 'P':
		members, negated, err := p.property(e == 'P')
		if err != nil {
			return nil, err
		}
		if negated {
			members = "^" + members
		}
		return p.class(members, false) // (?i) applies to characters, and to classes in brackets
	case 'b', 'B':
		word, err := p.class(wordClass, false)
		if err != nil {
			return nil, err
		}
		return &patternNode{op: patWordEdge, set: word.set, negated: e == 'B'}, nil
	case 'A':
		return &patternNode{op: patTextStart}, nil
	case 'z':
		return &patternNode{op: patTextEnd}, nil
	default:
		r, err := p.character(e)
		if err != nil {
			return nil, err
		}
		return p.literal(r)
	}
}

// character returns the character that backslash e stands for.
func (p *patternParser) character(e rune) (rune, error) {
	switch e {
	case 't', 'n', 'r', 'f', 'v', 'a':
		return rune("\t\n\r\f\v\a"[strings.IndexRune("tnrfva", e)]), nil
	case 'u', 'x':
		digits := ""
		if e == 'x' && p.take("{") {
			var closed bool
			if digits, _, closed = strings.Cut(p.rest(), "}"); !closed {
				return 0, fmt.Errorf(`\%c is cut off`, e)
			}
			p.at += len(digits) + 1
		} else {
			size := map[rune]int{'u': 4, 'x': 2}[e]
			if len(p.rest()) < size {
				return 0, fmt.Errorf(`\%c is cut off`, e)
			}
			digits = p.rest()[:size]
			p.at += size
		}
		r, err := strconv.ParseUint(digits, 16, 32)
		if err != nil || len(digits) > 8 || r > math.MaxInt32 || !utf8.ValidRune(rune(r)) {
			return 0, fmt.Errorf(`\%c%.10q is not a character`, e, digits)
		}
		return rune(r), nil
	}
	if e >= '0' && e <= '9' || e >= 'A' && e <= 'Z' || e >= 'a' && e <= 'z' {
		return 0, unsupported(`\%c`, e)
	}
	return e, nil
}

// property reads the name after \p or \P.
func (p *patternParser) property(negated bool) (members string, not bool, err error) {
	name, _, closed := strings.Cut(p.rest(), "}")
	if !closed || len(name) < 2 || name[0] != '{' {
		return "", false, unsupported(`\p or \P without a name in braces`)
	}
	p.at += len(name) + 1
	name = name[1:]
	if strings.HasPrefix(name, "^") {
		name, negated = name[1:], !negated
	}
	if strings.ContainsAny(name, `\[]{}`) {
		return "", false, fmt.Errorf("no property %.20q", name)
	}
	if !exact[name] {
		return "", false, unsupported("the property %.40q", name)
	}
	return propertyClass(name), negated, nil
}

// class returns a part that takes one character; members is the content of
// brackets in the syntax of package regexp.
func (p *patternParser) class(members string, fold bool) (*patternNode, error) {
	ranges, err := classRanges(members, fold)
	if err != nil {
		return nil, err
	}
	key := string(ranges)
	set, ok := p.sets[key]
	if !ok {
		if len(p.sets) == maxPatternSets {
			return nil, unsupported("a pattern of more than %d different classes", maxPatternSets)
		}
		set = newCharSet(ranges)
		p.sets[key] = set
	}
	return &patternNode{op: patClass, set: set}, nil
}

// classRanges returns the characters of a class as pairs of bounds, ascending.
func classRanges(members string, fold bool) ([]rune, error) {
	flags := syntax.Perl
	if fold {
		flags |= syntax.FoldCase
	}
	switch members {
	case "": // package syntax knows no empty brackets
		return nil, nil
	case "^":
		return []rune{0, utf8.MaxRune}, nil
	}
	re, err := syntax.Parse("["+members+"]", flags)
	if err != nil {
		return nil, fmt.Errorf("class [%.40s]: %w", members, err)
	}
	switch re.Op {
	case syntax.OpCharClass:
		return re.Rune, nil
	case syntax.OpAnyChar:
		return []rune{0, utf8.MaxRune}, nil
	case syntax.OpAnyCharNotNL:
		return []rune{0, '\n' - 1, '\n' + 1, utf8.MaxRune}, nil
	case syntax.OpLiteral: // a class of one character
		var ranges []rune
		folded := re.Flags&syntax.FoldCase != 0
		for r := re.Rune[0]; len(ranges) == 0 || folded && r != re.Rune[0]; {
			ranges = append(ranges, r, r)
			r = unicode.SimpleFold(r)
		}
		slices.Sort(ranges)
		return ranges, nil
	}
	return nil, nil // no character
}

// negatedClass returns the complement of a class, as written inside brackets.
func negatedClass(members string) (string, error) { return rangesClass("^" + members) }

// rangesClass returns the ranges of a class, as written inside brackets.
func rangesClass(members string) (string, error) {
	ranges, err := classRanges(members, false)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for i := 0; i < len(ranges); i += 2 {
		b.WriteString(classRange(ranges[i], ranges[i+1]))
	}
	return b.String(), nil
}

// classRange formats a range as written inside brackets.
func classRange(lo, hi rune) string { return fmt.Sprintf(`\x{%x}-\x{%x}`, lo, hi) }

// The classes of the pattern syntax, as written inside brackets.
var classNames = map[byte]string{
	's': "\\t-\\r\u0085\\p{Z}",
	'd': propertyClass("Nd"),
	'w': wordClass,
}

// posixClasses are the classes [:name:] inside brackets, as written inside brackets. The others
// have characters by properties that neither Go's tables nor newer have in full.
var posixClasses = map[string]string{
	"ascii": `\x00-\x7f`, "blank": `\t` + propertyClass("Zs"), "cntrl": `\p{Cc}`, "digit": classNames['d'],
	"punct": propertyClass("P") + propertyClass("S"), "space": classNames['s'], "word": bracketWord, "xdigit": "0-9A-Fa-f",
}

// wordClass is \w, and bracketWord is \w inside brackets, as written inside brackets.
// Only outside them Oniguruma counts the Latin-1 superscript digits and fractions as
// word characters.
var (
	wordClass   = bracketWord + "\u00b2\u00b3\u00b9\u00bc-\u00be"
	bracketWord = propertyClass("L") + propertyClass("M") + propertyClass("Nd") + `\p{Nl}\p{Pc}` +
		"\u24b6-\u24e9\U0001F130-\U0001F149\U0001F150-\U0001F169\U0001F170-\U0001F189"
)

// propertyClass returns \p{name} as Unicode 16 has it, as written inside brackets.
func propertyClass(name string) string {
	var b strings.Builder
	b.WriteString(`\p{` + name + `}`)
	if old := older[name]; old != nil {
		if ranges, err := classRanges(b.String(), false); err == nil {
			b.Reset()
			for i := 0; i < len(ranges); i += 2 {
				writeWithout(&b, ranges[i], ranges[i+1], old)
			}
		}
	}
	for _, category := range newerIn[name] {
		for _, r := range newer[category] {
			b.WriteString(classRange(r[0], r[1]))
		}
	}
	return b.String()
}

// writeWithout writes the characters from lo to hi that are in none of the ranges.
func writeWithout(b *strings.Builder, lo, hi rune, ranges [][2]rune) {
	for i, r := range ranges {
		if r[1] < lo || hi < r[0] {
			continue
		}
		if lo < r[0] {
			writeWithout(b, lo, r[0]-1, ranges[i+1:])
		}
		if r[1] < hi {
			writeWithout(b, r[1]+1, hi, ranges[i+1:])
		}
		return
	}
	b.WriteString(classRange(lo, hi))
}

package grammar

import "slices"

// characters returns the rule of JSON strings of least to most characters; most -1: no
// bound.
func (c *compiler) characters(least, most int) int32 {
	key := [2]int{least, most}
	if r, ok := c.texts[key]; ok {
		return r
	}
	r := c.begin(least, most)
	c.texts[key] = r
	if most >= 0 && most < least {
		return r // nothing
	}
	body := c.text(c.rules[r].start, `"`)
	c.inside(body)
	c.nodes[body].edges = append(c.nodes[body].edges, edge{lo: '"', hi: '"', need: true, to: c.rules[r].end})
	return r
}

// inside lets a node read the characters of a string, each leading back to it.
func (c *compiler) inside(body int32) {
	r := c.nodes[body].rule
	c.nodes[body].free = true
	first := func(to int32, lo, hi byte) {
		c.nodes[body].edges = append(c.nodes[body].edges, edge{lo: lo, hi: hi, count: true, to: to})
	}
	first(body, 0x20, '"'-1)
	first(body, '"'+1, '\\'-1)
	first(body, '\\'+1, 0x7f)
	// UTF-8, without overlong forms, surrogates and anything beyond U+10FFFF.
	one, two, three := c.node(r), c.node(r), c.node(r) // bytes left
	c.edge(one, body, 0x80, 0xbf)
	c.edge(two, one, 0x80, 0xbf)
	c.edge(three, two, 0x80, 0xbf)
	first(one, 0xc2, 0xdf)
	for _, x := range []struct{ lead, leadTo, lo, hi byte }{{0xe0, 0xe0, 0xa0, 0xbf}, {0xed, 0xed, 0x80, 0x9f}} {
		n := c.node(r)
		first(n, x.lead, x.leadTo)
		c.edge(n, one, x.lo, x.hi)
	}
	first(two, 0xe1, 0xec)
	first(two, 0xee, 0xef)
	for _, x := range []struct{ lead, lo, hi byte }{{0xf0, 0x90, 0xbf}, {0xf4, 0x80, 0x8f}} {
		n := c.node(r)
		first(n, x.lead, x.lead)
		c.edge(n, two, x.lo, x.hi)
	}
	first(three, 0xf1, 0xf3)

	escape, u := c.node(r), c.node(r)
	first(escape, '\\', '\\')
	for _, b := range []byte(`"\/bfnrt`) {
		c.edge(escape, body, b, b)
	}
	c.edge(escape, u, 'u', 'u')
	// Four digits, but surrogates only in pairs.
	left1, left2 := c.node(r), c.node(r)
	c.hex(left1, body, "09afAF")
	c.hex(left2, left1, "09afAF")
	left3, d := c.node(r), c.node(r)
	c.hex(left3, left2, "09afAF")
	c.hex(u, left3, "09acefACEF")
	c.hex(u, d, "ddDD")
	c.hex(d, left2, "07")
	low, high := c.node(r), c.node(r)
	c.hex(d, high, "89abAB")
	at := c.node(r)
	c.hex(high, at, "09afAF")
	next := c.node(r)
	c.hex(at, next, "09afAF")
	next = c.text(next, `\u`)
	at = c.node(r)
	c.hex(next, at, "ddDD")
	c.hex(at, low, "cfCF")
	c.hex(low, left1, "09afAF")
}

// hex reads a digit in the ranges, which are pairs of bytes.
func (c *compiler) hex(from, to int32, ranges string) {
	for i := 0; i < len(ranges); i += 2 {
		c.edge(from, to, ranges[i], ranges[i+1])
	}
}

// otherKeys returns the rule of strings that are none of the names. As long as a string
// agrees with a name, its characters are written as quote writes them: no name can be spelled
// in another way.
func (c *compiler) otherKeys(names []string) int32 {
	if len(names) == 0 {
		return c.characters(0, -1)
	}
	r := c.begin(0, -1)
	start, end := c.rules[r].start, c.rules[r].end
	body := c.node(r)
	c.inside(body)
	c.edge(body, end, '"', '"')
	var texts []string
	for _, n := range names {
		q := quote(n)
		texts = append(texts, q[1:len(q)-1])
	}
	slices.Sort(texts)
	// follow returns where a byte leads; the node itself if nowhere.
	follow := func(node int32, b byte) int32 {
		to := node
		for _, e := range c.nodes[node].edges {
			if e.lo <= b && b <= e.hi {
				to = e.to
			}
		}
		return to
	}
	var escape int32 // after a backslash that no name has there
	// split makes the node after the first n bytes, which the texts share; free is
	// where reading would be without them; escaped: after a backslash.
	var split func(texts []string, n int, free int32, escaped bool) int32
	split = func(texts []string, n int, free int32, escaped bool) int32 {
		at := c.node(r)
		if c.err != nil { // all nodes are the same one, whose edges would double with every byte
			return at
		}
		var taken [256]bool
		for len(texts) > 0 && len(texts[0]) == n {
			taken['"'] = true
			texts = texts[1:]
		}
		for len(texts) > 0 {
			b := texts[0][n]
			k := slices.IndexFunc(texts, func(s string) bool { return s[n] != b })
			if k < 0 {
				k = len(texts)
			}
			taken[b] = true
			next := follow(free, b)
			c.edge(at, split(texts[:k], n+1, next, next != body && (escaped || b == '\\')), b, b)
			texts = texts[k:]
		}
		if escaped {
			for _, b := range []byte(`"\nrt`) { // as in quote
				if !taken[b] && follow(free, b) == body {
					c.edge(at, body, b, b)
				}
			}
			return at
		}
		if free == body && !taken['\\'] {
			c.edge(at, escape, '\\', '\\')
		}
		taken['\\'] = true
		for _, e := range slices.Clone(c.nodes[free].edges) {
			for lo := int(e.lo); lo <= int(e.hi); lo++ {
				hi := lo
				for hi <= int(e.hi) && !taken[hi] {
					hi++
				}
				if hi > lo {
					c.edge(at, e.to, byte(lo), byte(hi-1))
					lo = hi
				}
			}
		}
		return at
	}
	escape = split(nil, 0, follow(body, '\\'), true)
	c.edge(start, split(texts, 0, body, false), '"', '"')
	return r
}

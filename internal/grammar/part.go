package grammar

import (
	"errors"
	"fmt"
)

// Part is a language that grammars are made of.
type Part struct {
	// build adds the part after a node and returns where it ends.
	build func(c *compiler, from int32) (int32, error)
}

// Text is a single text.
func Text(s string) Part {
	return Part{func(c *compiler, from int32) (int32, error) { return c.text(from, s), nil }}
}

// Schema is the JSON texts of the values that a JSON Schema describes. If the schema
// does not say whether an object may have further properties, it may unless strict is
// set.
func Schema(schema []byte, strict bool) Part {
	return Part{func(c *compiler, from int32) (int32, error) {
		v, err := parse(schema)
		if err != nil {
			return 0, fmt.Errorf("schema: %w", err)
		}
		s := schemas{c: c, root: v, strict: strict}
		r, err := s.compile(v, "#")
		if err != nil {
			return 0, err
		}
		return c.then(from, r), nil
	}}
}

// Sequence is one part after another.
func Sequence(parts ...Part) Part {
	return Part{func(c *compiler, from int32) (int32, error) {
		var err error
		for _, p := range parts {
			if from, err = p.build(c, from); err != nil {
				return 0, err
			}
		}
		return from, nil
	}}
}

// OneOf is any of the parts, of which there must be at least one.
func OneOf(parts ...Part) Part {
	return Part{func(c *compiler, from int32) (int32, error) {
		if len(parts) == 0 {
			return 0, errors.New("there is nothing to choose from")
		}
		to := c.node(c.nodes[from].rule)
		for _, p := range parts {
			first := c.node(c.nodes[from].rule)
			c.skip(from, first)
			last, err := p.build(c, first)
			if err != nil {
				return 0, err
			}
			c.skip(last, to)
		}
		return to, nil
	}}
}

// Texts is any of the texts, of which there must be at least one.
func Texts(list ...string) Part {
	return Part{func(c *compiler, from int32) (int32, error) {
		if len(list) == 0 {
			return 0, errors.New("there is nothing to choose from")
		}
		to := c.node(c.nodes[from].rule)
		c.words(from, to, list)
		return to, nil
	}}
}

// Repeat is a part one or more times, with another in between.
func Repeat(p, between Part) Part {
	return Part{func(c *compiler, from int32) (int32, error) {
		first := c.node(c.nodes[from].rule)
		c.skip(from, first)
		last, err := p.build(c, first)
		if err != nil {
			return 0, err
		}
		again, err := between.build(c, last)
		if err != nil {
			return 0, err
		}
		c.skip(again, first)
		to := c.node(c.nodes[from].rule)
		c.skip(last, to)
		return to, nil
	}}
}

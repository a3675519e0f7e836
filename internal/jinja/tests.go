package jinja

func isUndefined(v any) bool {
	_, ok := v.(*undefined)
	return ok
}

// is defines a test of a value's type.
func is(name string, ok func(v any) bool) *builtin {
	return define(name, "value", func(r *run, a []any) any { return ok(a[0]) })
}

func typeTests() []*builtin {
	return []*builtin{
		is("defined", func(v any) bool { return !isUndefined(v) }),
		is("undefined", isUndefined),
		is("none", func(v any) bool { return v == nil }),
		is("true", func(v any) bool { b, ok := v.(bool); return ok && b }),
		is("false", func(v any) bool { b, ok := v.(bool); return ok && !b }),
		is("boolean", func(v any) bool { _, ok := v.(bool); return ok }),
		is("float", func(v any) bool { _, ok := v.(float64); return ok }),
		is("number", isNumber),
		is("integer", func(v any) bool { return typeName(v) == "int" }),
		is("string", func(v any) bool { _, ok := v.(text); return ok }),
		is("escaped", func(v any) bool { t, ok := v.(text); return ok && t.safe }),
		is("mapping", func(v any) bool { _, ok := v.(*dict); return ok }),
		is("callable", func(v any) bool {
			switch v.(type) {
			case *method, *macro, *loopContext, *undefined:
				return true // an undefined value can be called, which fails
			}
			return false
		}),
		is("sequence", func(v any) bool {
			switch v.(type) {
			case text, []any, tuple, *dict, *rangeValue, *undefined:
				return true
			}
			return false
		}),
		is("iterable", func(v any) bool {
			switch v.(type) {
			case text, []any, tuple, *dict, *rangeValue, *view, *generator, *loopContext, *undefined:
				return true
			}
			return false
		}),
	}
}

func valueTests() []*builtin {
	var list []*builtin
	comparison := func(op string, names ...string) {
		for _, name := range names {
			list = append(list, define(name, "value other", func(r *run, a []any) any {
				return r.compareOp(op, a[0], a[1])
			}))
		}
	}
	comparison("==", "==", "eq", "equalto")
	comparison("!=", "!=", "ne")
	comparison("<", "<", "lt", "lessthan")
	comparison("<=", "<=", "le")
	comparison(">", ">", "gt", "greaterthan")
	comparison(">=", ">=", "ge")
	comparison("in", "in")
	rest := func(name string, divisor, want int64) *builtin {
		return define(name, "value", func(r *run, a []any) any {
			return r.equal(r.binary("%", a[0], divisor), want)
		})
	}
	cased := func(name string, ok func(string) bool) *builtin {
		return define(name, "value", func(r *run, a []any) any {
			t := r.show(a[0])
			r.work(len(t.s))
			return ok(t.s)
		})
	}
	return append(list,
		define("divisibleby", "value num", func(r *run, a []any) any {
			return r.equal(r.binary("%", a[0], a[1]), int64(0))
		}),
		rest("odd", 2, 1), rest("even", 2, 0),
		cased("lower", isLower), cased("upper", isUpper),
	)
}

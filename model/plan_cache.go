package model

import (
	"slices"
	"sync"

	"github.com/lukv/lukv/lukv"
)

// maxPlans bounds the compiled policies that a model keeps.
const maxPlans = 16

// planCache keeps the compiled policies of a model and the budgets that they came to, the most
// recently used last: estimates and sessions of a request are made with the same ones.
type planCache struct {
	mu        sync.Mutex
	list      []compiledPolicy
	divisions []division
	compiled  int // how many times a policy was compiled
	divided   int // how many times a budget was divided
}

// division is what each head keeps of a span, where that does not depend on scores.
type division struct {
	plan     *lukv.Compiled
	start, T int // of the span
	budgets  [][]int
}

type compiledPolicy struct {
	key  policyKey
	plan *lukv.Compiled
}

// policyKey is everything that a model's compiled policy depends on.
type policyKey struct {
	policy        lukv.Policy // without Protection
	protection    lukv.Protection
	protects      bool
	bytesPerEntry int
}

// compile returns the policy compiled for a cache of a model with the given identity.
func (p *planCache) compile(policy *lukv.Policy, id string, shape lukv.CacheShape) (*lukv.Compiled, error) {
	key := policyKey{policy: *policy, bytesPerEntry: shape.BytesPerEntry}
	if prot := policy.Protection; prot != nil {
		key.policy.Protection, key.protection, key.protects = nil, *prot, true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.IndexFunc(p.list, func(c compiledPolicy) bool { return c.key == key }); i >= 0 {
		found := p.list[i]
		p.list = append(slices.Delete(p.list, i, i+1), found)
		return found.plan, nil
	}
	p.compiled++
	plan, err := policy.Compile(id, shape)
	if err != nil {
		return nil, err
	}
	if len(p.list) >= maxPlans {
		p.list = slices.Delete(p.list, 0, 1)
	}
	p.list = append(p.list, compiledPolicy{key, plan})
	return plan, nil
}

// divide returns the budgets, [L][K], of a policy that are known before the scores of a span of T
// tokens from position start on, which ask d of it; nil if they are not. They must not be changed.
func (p *planCache) divide(plan *lukv.Compiled, start, T int, d lukv.Demand) ([][]int, error) {
	if plan.Allocator().BudgetsKnown() != lukv.KnownBefore {
		return nil, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.IndexFunc(p.divisions, func(x division) bool { return x.plan == plan && x.start == start && x.T == T }); i >= 0 {
		found := p.divisions[i]
		p.divisions = append(slices.Delete(p.divisions, i, i+1), found)
		return found.budgets, nil
	}
	p.divided++
	budgets, err := lukv.Allocate(plan.Allocator(), d, nil)
	if err != nil {
		return nil, err
	}
	if len(p.divisions) >= maxPlans {
		p.divisions = slices.Delete(p.divisions, 0, 1)
	}
	p.divisions = append(p.divisions, division{plan, start, T, budgets})
	return budgets, nil
}

package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/go-rlock/rlock"
)

// What no constructor made is refused by the first call, and a lease that is none is one that has ended. Of a
// nil pointer that holds for the methods that a type declares itself. Those that it has from what it embeds
// panic, as Go has no value to call them with: most of the locks', which share them.
func TestMethodsOfNilAndZeroReceivers(t *testing.T) {
	t.Parallel()
	contexts, failures := reflect.TypeFor[context.Context](), reflect.TypeFor[error]()
	for _, typ := range []reflect.Type{
		reflect.TypeFor[rlock.Client](), reflect.TypeFor[rlock.Lock](), reflect.TypeFor[rlock.FairLock](), reflect.TypeFor[rlock.SpinLock](),
		reflect.TypeFor[rlock.FencedLock](), reflect.TypeFor[rlock.ReadWriteLock](), reflect.TypeFor[rlock.FairReadWriteLock](),
		reflect.TypeFor[rlock.ReadLock](), reflect.TypeFor[rlock.WriteLock](), reflect.TypeFor[rlock.PriorityLock](),
		reflect.TypeFor[rlock.MultiLock](), reflect.TypeFor[rlock.RedLock](), reflect.TypeFor[rlock.Semaphore](),
		reflect.TypeFor[rlock.PermitSemaphore](), reflect.TypeFor[rlock.CountDownLatch](), reflect.TypeFor[rlock.Barrier](),
		reflect.TypeFor[rlock.DoubleBarrier](), reflect.TypeFor[rlock.Election](), reflect.TypeFor[rlock.Once](), reflect.TypeFor[rlock.CronJob](), reflect.TypeFor[rlock.Lease](),
	} {
		for what, v := range map[string]reflect.Value{"nil": reflect.Zero(reflect.PointerTo(typ)), "zero": reflect.New(typ)} {
			for i := range v.NumMethod() {
				m := v.Type().Method(i)
				name := fmt.Sprintf("%s of a %s %s", m.Name, what, typ.Name())
				if _, byValue := typ.MethodByName(m.Name); byValue && what == "nil" {
					continue
				}
				call := v.Method(i)
				var args []reflect.Value
				for j := range call.Type().NumIn() {
					switch in := call.Type().In(j); {
					case call.Type().IsVariadic() && j == call.Type().NumIn()-1:
					case in == contexts:
						args = append(args, reflect.ValueOf(bg))
					case in.Kind() == reflect.Func:
						args = append(args, reflect.MakeFunc(in, func([]reflect.Value) []reflect.Value { panic(name + " calls its function") }))
					case in.Kind() == reflect.String:
						args = append(args, reflect.ValueOf("a").Convert(in))
					case in.Kind() >= reflect.Int && in.Kind() <= reflect.Int64:
						args = append(args, reflect.ValueOf(1).Convert(in))
					default:
						args = append(args, reflect.Zero(in))
					}
				}
				func() {
					defer func() {
						if p := recover(); p != nil {
							t.Errorf("%s panics: %v", name, p)
						}
					}()
					out := call.Call(args)
					if len(out) == 0 || !out[len(out)-1].Type().Implements(failures) || m.Name == "Err" {
						return
					}
					err, _ := out[len(out)-1].Interface().(error)
					want := rlock.ErrInvalidArgument
					if typ == reflect.TypeFor[rlock.Lease]() {
						want = rlock.ErrNotHeld
					}
					if !errors.Is(err, want) {
						t.Errorf("%s: %v", name, err)
					}
				}()
			}
		}
	}
}

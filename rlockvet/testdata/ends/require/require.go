// Package require has some names of testify.
package require

type TestingT interface {
	Errorf(format string, args ...any)
	FailNow()
}

type Assertions struct{ t TestingT }

func (a *Assertions) Fail(message string, args ...any)           { Fail(a.t, message, args...) }
func (a *Assertions) ErrorIs(err, target error, args ...any)     { ErrorIs(a.t, err, target, args...) }
func Fail(t TestingT, message string, args ...any)               { t.FailNow() }
func Failf(t TestingT, message, format string, args ...any)      { t.FailNow() }
func FailNow(t TestingT, message string, args ...any)            { t.FailNow() }
func Error(t TestingT, err error, args ...any)                   { True(t, err != nil) }
func ErrorIs(t TestingT, err, target error, args ...any)         { True(t, err != nil) }
func EqualError(t TestingT, err error, text string, args ...any) { True(t, err != nil) }
func NotErrorIs(t TestingT, err, target error, args ...any)      {}
func NoError(t TestingT, err error, args ...any)                 { True(t, err == nil) }
func True(t TestingT, value bool, args ...any) {
	if !value {
		t.FailNow()
	}
}

// Package interop has nothing but tests: they run this library and the real
// Redisson, processes of both, against each other on one Redis.
//
// The Java program that they drive stands in java/; Maven builds it when the
// tests begin. Without Java, Maven or redis-server the tests are skipped, unless
// RLOCK_REQUIRE_INTEROP=1 forbids that. With RLOCK_NIGHTLY=1 everything is played, and what
// that has shown is the table in docs/redisson.md: a run that shows something else fails, and
// with -interop.update writes it. Without it, what needs no clock is played on one server, and one failover by Sentinel.
package interop

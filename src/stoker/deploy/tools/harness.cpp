// Drives a Verilated design: samples into its AXI4-Streams and results out of them, with random pauses on both sides if
// asked for. Watches the protocol of the outputs and, when nothing moves any more, asks the design's registers which
// FIFOs are full. `ports.hpp` is written for each design. Two ways to run it:
//   simulator FOLDER SAMPLES SEED STALL_IN STALL_OUT    samples and results in files, one line of JSON on standard output
//   simulator serve SEED    batch after batch over standard input and output, until that ends: two words of 64 bits with
//                           the samples and the bytes of updates, the updates, the samples of each input; back come the
//                           length of a line of JSON, the line, and the results of each output if all of them came
// Updates are records: the sample (64 bits) with whose first word or later they begin, their words (64 bits), and these
// (32 bits each). In the first way they are in FOLDER/updates.bin.
// Where changes of bits are counted, those of the run are left in FOLDER/activity.dat.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "Vaccelerator.h"
#include "ports.hpp"
#include "streams.hpp"
#include "verilated.h"
#if VM_COVERAGE
#include "verilated_cov.h"
#endif

namespace {

struct In {
    size_t bytes, words;  // of a word; words of a sample
    Bytes data;
    size_t next = 0;      // word
    bool valid = false;
};

struct Update {
    uint64_t after;   // samples of the first input that have begun
    std::vector<uint32_t> words;
    uint64_t begun = 0, taken = 0, done = 0;  // cycles of the first word offered, of the last one taken, of its end
    uint32_t first = 0, status = 0;           // what the design says afterwards
};

std::vector<Update> updates_of(const Bytes& data) {
    std::vector<Update> found;
    for (size_t at = 0; at + 16 <= data.size();) {
        uint64_t head[2];
        std::memcpy(head, data.data() + at, 16);
        at += 16;
        Update update{head[0], std::vector<uint32_t>(std::min<uint64_t>(head[1], (data.size() - at) / 4))};
        if (!update.words.empty()) std::memcpy(update.words.data(), data.data() + at, update.words.size() * 4);
        at += update.words.size() * 4;
        found.push_back(std::move(update));
    }
    return found;
}

struct Bench {
    VerilatedContext context;
    std::unique_ptr<Vaccelerator> top;
    std::vector<In> ins;
    std::vector<Out> outs;
    uint64_t cycle = 0;
    uint64_t samples = 0;  // that it was given since the reset

    // All that is not reset begins with random bits: nothing may depend on it.
    explicit Bench(uint64_t seed) {
        context.randReset(2);
        context.randSeed(static_cast<int>(seed + 1));
        top = std::make_unique<Vaccelerator>(&context);
#define X(AT, BYTES, WORDS) ins.push_back({BYTES, WORDS, {}});
        DESIGN_INPUTS(X)
#undef X
#define X(AT, BYTES, WORDS) outs.push_back({BYTES, WORDS, {}});
        DESIGN_OUTPUTS(X)
#undef X
        top->s_axi_awvalid = top->s_axi_wvalid = top->s_axi_arvalid = 0;
        top->s_axi_bready = top->s_axi_rready = 0;
#ifdef DESIGN_UPDATES
        top->w_axis_tvalid = top->w_axis_tlast = 0;
#endif
#define X(AT, BYTES, WORDS) top->s##AT##_axis_tvalid = 0, top->s##AT##_axis_tlast = 0;
        DESIGN_INPUTS(X)
#undef X
#define X(AT, BYTES, WORDS) top->m##AT##_axis_tready = 0;
        DESIGN_OUTPUTS(X)
#undef X
        top->aresetn = 0;
        context.assertOn(false);  // before the reset, nothing holds
        for (int at = 0; at < 4; ++at) settle(), edge();
        context.assertOn(true);
        top->aresetn = 1;
        for (int at = 0; at < 2; ++at) settle(), edge();
    }

    void settle() {
        top->aclk = 0;
        top->eval();
    }
    void edge() {
        top->aclk = 1;
        top->eval();
        ++cycle;
    }

    uint32_t read_register(uint32_t address) {
        top->s_axi_araddr = static_cast<uint8_t>(address);
        top->s_axi_arvalid = 1;
        top->s_axi_rready = 1;
        for (bool asked = false;;) {
            settle();
            if (top->s_axi_rvalid) {
                uint32_t word = top->s_axi_rdata;
                edge();
                return word;
            }
            bool taken = top->s_axi_arready;
            edge();
            if (taken && !asked) {
                asked = true;
                top->s_axi_arvalid = 0;
            }
        }
    }

    void write_register(uint32_t address, uint32_t word) {
        top->s_axi_awaddr = static_cast<uint8_t>(address);
        top->s_axi_wdata = word;
        top->s_axi_awvalid = top->s_axi_wvalid = top->s_axi_bready = 1;
        for (bool taken = false; !taken;) {
            settle();
            taken = top->s_axi_awready && top->s_axi_wready;
            edge();
        }
        top->s_axi_awvalid = top->s_axi_wvalid = 0;
        settle();
        edge();
    }
};

#ifdef DESIGN_UPDATES
// Sends updates next to the samples, and asks the design's registers for their end.
class Updater {
public:
    Updater(std::vector<Update>& updates, Random& random, double stall) : updates_(updates), random_(random), stall_(stall) {}

    bool done() const { return at_ == updates_.size(); }

    void drive(Vaccelerator* top, uint64_t samples_begun, bool all_sent, uint64_t cycle) {
        if (!done() && step_ == WAIT && (samples_begun >= updates_[at_].after || all_sent)) step_ = SEND, updates_[at_].begun = cycle;
        if (step_ == SEND && !valid_ && !random_.chance(stall_)) {
            valid_ = true;
            top->w_axis_tdata = updates_[at_].words[next_];
            top->w_axis_tlast = next_ + 1 == updates_[at_].words.size();
        }
        top->w_axis_tvalid = valid_;
        top->s_axi_araddr = step_ == POLL ? 0xe4 : 0xe8;
        top->s_axi_arvalid = (step_ == POLL || step_ == READ) && !asked_;
        top->s_axi_rready = 1;
    }

    // Whether something moved, after the design has settled.
    bool observe(Vaccelerator* top, uint64_t cycle) {
        if (done()) return false;
        Update& update = updates_[at_];
        const bool taken = valid_ && top->w_axis_tready;
        if (taken) {
            valid_ = false;
            if (++next_ == update.words.size()) update.taken = cycle, step_ = POLL, next_ = 0;
        } else if (asked_ && top->s_axi_rvalid) {
            asked_ = false;
            if (step_ == POLL) {
                update.status = top->s_axi_rdata;
                if (!(update.status & 1)) update.done = cycle, step_ = READ;
            } else {
                update.first = top->s_axi_rdata;
                step_ = WAIT;
                ++at_;
            }
        } else if (top->s_axi_arvalid && top->s_axi_arready) {
            asked_ = true;
        }
        return taken;
    }

private:
    enum { WAIT, SEND, POLL, READ } step_ = WAIT;
    std::vector<Update>& updates_;
    Random& random_;
    double stall_;
    size_t at_ = 0, next_ = 0;
    bool valid_ = false, asked_ = false;
};
#endif

struct Seen {  // in one run over some samples
    uint64_t cycles = 0;
    bool stuck = false;
    std::string wrong;
    uint64_t begun = 0;       // cycle of its begin
    uint64_t samples = 0;     // that the design had been given before
    std::vector<Update> updates;
};

// Sends so many samples, whose numbers the inputs hold, and takes their results; updates go next to them.
Seen run(Bench& bench, uint64_t samples, std::vector<Update> updates, Random& random, double stall_in, double stall_out) {
    Vaccelerator* top = bench.top.get();
    bench.write_register(0x08, 0);
    for (In& in : bench.ins) in.next = 0, in.valid = false;
    for (Out& out : bench.outs) out.next = 0, out.waiting = false, out.data.clear(), out.done.clear();
    Seen seen;
    const uint64_t begun = seen.begun = bench.cycle;
    seen.samples = bench.samples;
    seen.updates = std::move(updates);
#ifdef DESIGN_UPDATES
    Updater updater(seen.updates, random, stall_in);
#endif
    bool updated = true;
    uint64_t idle = 0;
    size_t left = samples ? bench.outs.size() : 0;
    std::string& wrong = seen.wrong;
#ifdef DESIGN_UPDATES
    updated = updater.done();
#endif
    while ((left || !updated) && wrong.empty() && !seen.stuck) {
        // Models change for samples of all inputs: then none is far ahead of another, as from a program that sends both.
        uint64_t most = samples;
        if (!seen.updates.empty()) {
            for (const In& in : bench.ins) most = std::min<uint64_t>(most, in.next / in.words + 2);
        }
#define X(AT, BYTES, WORDS)                                                                \
    {                                                                                      \
        In& in = bench.ins[AT];                                                            \
        if (!in.valid && in.next < most * in.words && !random.chance(stall_in)) {          \
            in.valid = true;                                                               \
            put(top->s##AT##_axis_tdata, in.data.data() + in.next * in.bytes, in.bytes);   \
            top->s##AT##_axis_tlast = (in.next + 1) % in.words == 0;                       \
        }                                                                                  \
        top->s##AT##_axis_tvalid = in.valid;                                               \
    }
        DESIGN_INPUTS(X)
#undef X
#define X(AT, BYTES, WORDS) top->m##AT##_axis_tready = bench.outs[AT].ready = !random.chance(stall_out);
        DESIGN_OUTPUTS(X)
#undef X
#ifdef DESIGN_UPDATES
        const In& first = bench.ins[0];
        updater.drive(top, (first.next + first.words - 1) / first.words, first.next == samples * first.words, bench.cycle - begun);
#endif
        bench.settle();
        bool moved = false;
#ifdef DESIGN_UPDATES
        moved = updater.observe(top, bench.cycle - begun);
        updated = updater.done();
#endif
#define X(AT, BYTES, WORDS)                             \
    if (bench.ins[AT].valid && top->s##AT##_axis_tready) { \
        bench.ins[AT].valid = false;                    \
        ++bench.ins[AT].next;                           \
        moved = true;                                   \
    }
        DESIGN_INPUTS(X)
#undef X
#define X(AT, BYTES, WORDS)                                                                  \
    {                                                                                        \
        Out& out = bench.outs[AT];                                                           \
        const bool valid = top->m##AT##_axis_tvalid, last = top->m##AT##_axis_tlast;         \
        Bytes word(BYTES);                                                                   \
        get(top->m##AT##_axis_tdata, word.data(), BYTES);                                    \
        const std::string broken = out.observe(valid, word, last, bench.cycle - begun);      \
        if (wrong.empty()) wrong = broken;                                                   \
        if (valid && out.ready) {                                                            \
            moved = true;                                                                    \
            if (out.next == samples * out.words) --left;                                     \
            if (out.next > samples * out.words) wrong = "more words than the samples have";  \
        }                                                                                    \
    }
        DESIGN_OUTPUTS(X)
#undef X
        bench.edge();
        idle = moved ? 0 : idle + 1;
        seen.stuck = idle > DESIGN_WATCHDOG * 4ULL;
    }
    seen.cycles = bench.cycle - begun;
    bench.samples += samples;
#define X(AT, BYTES, WORDS) top->s##AT##_axis_tvalid = 0;
    DESIGN_INPUTS(X)
#undef X
    return seen;
}

// All that was given is done; a design that goes on alone has made something up.
void check_end(Bench& bench, Seen& seen) {
    Vaccelerator* top = bench.top.get();
    for (uint64_t at = 0; at < 64 && seen.wrong.empty() && !seen.stuck; ++at) {
        bench.settle();
#define X(AT, BYTES, WORDS) if (top->m##AT##_axis_tvalid) seen.wrong = "more words than the samples have";
        DESIGN_OUTPUTS(X)
#undef X
        bench.edge();
    }
}

template <typename Numbers>
std::string listed(const Numbers& numbers) {
    std::string text;
    for (const auto each : numbers) text += (text.empty() ? "" : ",") + std::to_string(each);
    return "[" + text + "]";
}

// A line of JSON: what was seen, and what the design's registers say.
std::string told(Bench& bench, const Seen& seen) {
    const uint32_t digest = bench.read_register(0x04), status = bench.read_register(0x08);
    const uint32_t counted_in = bench.read_register(0x10), counted_out = bench.read_register(0x14);
    std::vector<uint32_t> full;
    const uint32_t fifos = bench.read_register(0x24);
    for (uint32_t at = 0; at < fifos; ++at) {
        if ((bench.read_register(0x28 + at / 32 * 4) >> (at % 32)) & 1) full.push_back(at);
    }
    std::string done;
    for (const Out& out : bench.outs) done += (done.empty() ? "" : ",") + listed(out.done);
    std::string updates;
    for (const Update& each : seen.updates) {
        updates += std::string(updates.empty() ? "" : ",") + "{\"words\":" + std::to_string(each.words.size()) + ",\"begun\":" +
                   std::to_string(each.begun) + ",\"taken\":" + std::to_string(each.taken) + ",\"done\":" + std::to_string(each.done) +
                   ",\"first\":" + std::to_string(each.first - static_cast<uint32_t>(seen.samples)) + ",\"refused\":" +
                   ((each.status & 4) ? "true" : "false") + "}";
    }
    return "{\"digest\":" + std::to_string(digest) + ",\"cycles\":" + std::to_string(seen.cycles) + ",\"done\":[" + done +
           "],\"stuck\":" + (seen.stuck ? "true" : "false") + ",\"full\":" + listed(full) + ",\"wrong\":\"" + seen.wrong +
           "\",\"updates\":[" + updates + "],\"samples_in\":" + std::to_string(counted_in) + ",\"samples_out\":" + std::to_string(counted_out) +
           ",\"misplaced\":" + ((status & 2) ? "true" : "false") + "}\n";
}

int run_files(Bench& bench, const std::string& folder, uint64_t samples, Random& random, double stall_in, double stall_out) {
    std::vector<Update> updates;
#ifdef DESIGN_UPDATES
    updates = updates_of(read_file(folder + "/updates.bin"));
#endif
    for (size_t at = 0; at < bench.ins.size(); ++at) {
        In& in = bench.ins[at];
        const std::string name = "in" + std::to_string(at) + ".bin";
        in.data = read_file(folder + "/" + name);
        if (in.data.size() != samples * in.bytes * in.words) return std::fprintf(stderr, "%s has a wrong size\n", name.c_str()), 3;
    }
#if VM_COVERAGE
    bench.context.coveragep()->zero();  // what came before the samples does not count
#endif
    Seen seen = run(bench, samples, updates, random, stall_in, stall_out);
#if VM_COVERAGE
    bench.context.coveragep()->forcePerInstance(true);
    bench.context.coveragep()->write(folder + "/activity.dat");
#endif
    check_end(bench, seen);
    const std::string line = told(bench, seen);
    for (size_t at = 0; at < bench.outs.size(); ++at) {
        const std::string path = folder + "/out" + std::to_string(at) + ".bin";
        if (!write_file(path, bench.outs[at].data)) return 3;
    }
    std::fputs(line.c_str(), stdout);
    return 0;
}

bool take(void* data, size_t bytes) { return std::fread(data, 1, bytes, stdin) == bytes; }

int run_batches(Bench& bench, Random& random) {
    for (uint64_t head[2]; take(head, sizeof head);) {
        const uint64_t samples = head[0];
        Bytes updates(head[1]);
        if (!take(updates.data(), updates.size())) return 3;
        for (In& in : bench.ins) {
            in.data.resize(samples * in.bytes * in.words);
            if (!take(in.data.data(), in.data.size())) return 3;  // whoever sent it is gone
        }
        const Seen seen = run(bench, samples, updates_of(updates), random, 0, 0);
        const std::string line = told(bench, seen);
        const uint64_t size = line.size();
        std::fwrite(&size, sizeof size, 1, stdout);
        std::fwrite(line.data(), 1, size, stdout);
        if (seen.wrong.empty() && !seen.stuck) {
            for (const Out& out : bench.outs) std::fwrite(out.data.data(), 1, out.data.size(), stdout);
        }
        if (std::fflush(stdout)) return 3;
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    const bool serves = argc == 3 && std::string(argv[1]) == "serve";
    if (!serves && argc != 6) {
        std::fprintf(stderr, "usage: simulator FOLDER SAMPLES SEED STALL_IN STALL_OUT | serve SEED\n");
        return 2;
    }
    const uint64_t seed = std::strtoull(argv[serves ? 2 : 3], nullptr, 10);
    Bench bench(seed);
    Random random(seed);
    const int status = serves ? run_batches(bench, random)
                              : run_files(bench, argv[1], std::strtoull(argv[2], nullptr, 10), random, std::atof(argv[4]), std::atof(argv[5]));
    bench.top->final();
    return status;
}

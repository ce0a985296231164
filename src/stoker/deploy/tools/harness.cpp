// Drives a Verilated design: samples from files into its AXI4-Streams, results into files, with random pauses on both
// sides if asked for. Watches the protocol of the outputs and, when nothing moves any more, asks the design's registers
// which FIFOs are full. `ports.hpp` is written for each design; one line of JSON goes to standard output.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "Vaccelerator.h"
#include "ports.hpp"
#include "verilated.h"

namespace {

using Bytes = std::vector<uint8_t>;

template <typename Port>
void put(Port& port, const uint8_t* bytes, size_t count) {
    if constexpr (std::is_integral_v<Port>) {
        uint64_t word = 0;
        std::memcpy(&word, bytes, count);
        port = static_cast<Port>(word);
    } else {
        for (size_t at = 0; at < count; at += 4) {
            uint32_t word = 0;
            std::memcpy(&word, bytes + at, count - at < 4 ? count - at : 4);
            port[at / 4] = word;
        }
    }
}

template <typename Port>
void get(const Port& port, uint8_t* bytes, size_t count) {
    if constexpr (std::is_integral_v<Port>) {
        uint64_t word = port;
        std::memcpy(bytes, &word, count);
    } else {
        for (size_t at = 0; at < count; at += 4) {
            uint32_t word = port[at / 4];
            std::memcpy(bytes + at, &word, count - at < 4 ? count - at : 4);
        }
    }
}

struct Random {  // xorshift64*: Vigna, "An experimental exploration of Marsaglia's xorshift generators" (2016)
    uint64_t state;
    explicit Random(uint64_t seed) : state(seed * 0x9e3779b97f4a7c15ULL + 1) {}
    bool chance(double share) {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return static_cast<double>((state * 0x2545f4914f6cdd1dULL) >> 11) * 0x1p-53 < share;
    }
};

struct In {
    size_t bytes, words;  // of a word; words of a sample
    Bytes data;
    size_t next = 0;      // word
    bool valid = false;
};

struct Out {
    size_t bytes, words;
    Bytes data;
    size_t next = 0;
    bool ready = false;
    bool waiting = false;  // the word before was offered and not taken: it must stay
    Bytes offered;
    bool offered_last = false;
    std::vector<uint64_t> done;  // cycle of each sample's last word
};

Bytes read_file(const std::string& path) {
    Bytes found;
    std::FILE* file = std::fopen(path.c_str(), "rb");
    if (!file) {
        std::perror(path.c_str());
        std::exit(3);
    }
    uint8_t buffer[1 << 16];
    for (size_t count; (count = std::fread(buffer, 1, sizeof buffer, file)) > 0;) found.insert(found.end(), buffer, buffer + count);
    std::fclose(file);
    return found;
}

struct Bench {
    VerilatedContext context;
    std::unique_ptr<Vaccelerator> top;
    std::vector<In> ins;
    std::vector<Out> outs;
    uint64_t cycle = 0;

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

std::string broken_rule(const Out& out, bool valid, const Bytes& word, bool last) {
    if (out.waiting && !valid) return "tvalid fell before the word was taken";
    if (out.waiting && (word != out.offered || last != out.offered_last)) return "a word changed before it was taken";
    if (valid && last != ((out.next + 1) % out.words == 0)) return "tlast is not at the end of a sample";
    return "";
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 6) {
        std::fprintf(stderr, "usage: simulator FOLDER SAMPLES SEED STALL_IN STALL_OUT\n");
        return 2;
    }
    const std::string folder = argv[1];
    const uint64_t samples = std::strtoull(argv[2], nullptr, 10), seed = std::strtoull(argv[3], nullptr, 10);
    const double stall_in = std::atof(argv[4]), stall_out = std::atof(argv[5]);

    Bench bench;
    // All that is not reset begins with random bits: nothing may depend on it.
    bench.context.randReset(2);
    bench.context.randSeed(static_cast<int>(seed + 1));
    bench.top = std::make_unique<Vaccelerator>(&bench.context);
    Vaccelerator* top = bench.top.get();
#define X(AT, BYTES, WORDS) \
    bench.ins.push_back({BYTES, WORDS, read_file(folder + "/in" #AT ".bin")}); \
    if (bench.ins.back().data.size() != samples * (BYTES) * (WORDS)) return std::fprintf(stderr, "in" #AT ".bin has a wrong size\n"), 3;
    DESIGN_INPUTS(X)
#undef X
#define X(AT, BYTES, WORDS) bench.outs.push_back({BYTES, WORDS, {}});
    DESIGN_OUTPUTS(X)
#undef X

    top->s_axi_awvalid = top->s_axi_wvalid = top->s_axi_arvalid = 0;
    top->s_axi_bready = top->s_axi_rready = 0;
#define X(AT, BYTES, WORDS) top->s##AT##_axis_tvalid = 0, top->s##AT##_axis_tlast = 0;
    DESIGN_INPUTS(X)
#undef X
#define X(AT, BYTES, WORDS) top->m##AT##_axis_tready = 0;
    DESIGN_OUTPUTS(X)
#undef X
    top->aresetn = 0;
    bench.context.assertOn(false);  // before the reset, nothing holds
    for (int at = 0; at < 4; ++at) bench.settle(), bench.edge();
    bench.context.assertOn(true);
    top->aresetn = 1;
    for (int at = 0; at < 2; ++at) bench.settle(), bench.edge();
    const uint32_t digest = bench.read_register(0x04);
    bench.write_register(0x08, 0);

    Random random(seed);
    const uint64_t begun = bench.cycle;
    uint64_t idle = 0;
    size_t left = bench.outs.size();
    std::string wrong;
    bool stuck = false;
    while (left && wrong.empty() && !stuck) {
#define X(AT, BYTES, WORDS)                                                                \
    {                                                                                      \
        In& in = bench.ins[AT];                                                            \
        if (!in.valid && in.next < samples * in.words && !random.chance(stall_in)) {       \
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
        bench.settle();
        bool moved = false;
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
        if (wrong.empty()) wrong = broken_rule(out, valid, word, last);                      \
        out.waiting = valid && !out.ready;                                                   \
        out.offered = word;                                                                  \
        out.offered_last = last;                                                             \
        if (valid && out.ready) {                                                            \
            moved = true;                                                                    \
            out.data.insert(out.data.end(), word.begin(), word.end());                       \
            if (++out.next % out.words == 0) out.done.push_back(bench.cycle - begun);        \
            if (out.next == samples * out.words) --left;                                     \
            if (out.next > samples * out.words) wrong = "more words than the samples have";  \
        }                                                                                    \
    }
        DESIGN_OUTPUTS(X)
#undef X
        bench.edge();
        idle = moved ? 0 : idle + 1;
        stuck = idle > DESIGN_WATCHDOG * 4ULL;
    }

    // All that was given is done; a design that goes on alone has made something up.
    for (uint64_t at = 0; at < 64 && wrong.empty() && !stuck; ++at) {
#define X(AT, BYTES, WORDS) top->s##AT##_axis_tvalid = 0;
        DESIGN_INPUTS(X)
#undef X
        bench.settle();
#define X(AT, BYTES, WORDS) if (top->m##AT##_axis_tvalid) wrong = "more words than the samples have";
        DESIGN_OUTPUTS(X)
#undef X
        bench.edge();
    }

    const uint64_t cycles = bench.cycle - begun;
    const uint32_t status = bench.read_register(0x08), counted_in = bench.read_register(0x10), counted_out = bench.read_register(0x14);
    std::string full;
    const uint32_t fifos = bench.read_register(0x24);
    for (uint32_t at = 0; at < fifos; ++at) {
        if ((bench.read_register(0x28 + at / 32 * 4) >> (at % 32)) & 1) full += (full.empty() ? "" : ",") + std::to_string(at);
    }
#define X(AT, BYTES, WORDS)                                                                      \
    {                                                                                            \
        std::FILE* file = std::fopen((folder + "/out" #AT ".bin").c_str(), "wb");                \
        if (!file) return std::perror("out" #AT ".bin"), 3;                                      \
        std::fwrite(bench.outs[AT].data.data(), 1, bench.outs[AT].data.size(), file);            \
        if (std::fclose(file)) return std::perror("out" #AT ".bin"), 3;                          \
    }
    DESIGN_OUTPUTS(X)
#undef X
    std::string done;
    for (const Out& out : bench.outs) {
        std::string cycles_of;
        for (uint64_t each : out.done) cycles_of += (cycles_of.empty() ? "" : ",") + std::to_string(each);
        done += (done.empty() ? "[" : ",[") + cycles_of + "]";
    }
    std::printf(
        "{\"digest\":%u,\"cycles\":%llu,\"done\":[%s],\"stuck\":%s,\"full\":[%s],\"wrong\":\"%s\",\"samples_in\":%u,"
        "\"samples_out\":%u,\"misplaced\":%s}\n",
        digest, static_cast<unsigned long long>(cycles), done.c_str(), stuck ? "true" : "false", full.c_str(), wrong.c_str(),
        counted_in, counted_out, (status & 2) ? "true" : "false");
    top->final();
    return 0;
}

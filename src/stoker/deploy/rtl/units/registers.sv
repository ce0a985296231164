// Control and counters over AXI4-Lite, words of 32 bits; samples are those of the first input and the first output:
//   00 identity   04 the design's digest   08 status: 1 stuck, 2 a sample's end was misplaced; a write clears all
//   0c cycles     10 samples in            14 samples out       18 cycles in which an input waited
//   1c cycles in which an output waited    20 watchdog: cycles without a move before the design counts as stuck; 0: off
//   24 number of FIFOs                     28 and on: those that were full when it stuck, a bit each
`ifdef UPDATABLE
//   e0 words of an update   e4 its status: 1 under way, 2 switching, 4 the last one was not so long, and changed nothing
//   e8 first sample, counted from the reset on, of the model in use                           ec updates since the reset
`endif
module registers #(
`ifndef UPDATABLE
    parameter logic [31:0] DIGEST = 0,
`endif
    parameter logic [31:0] LIMIT = 0,
    parameter int FIFOS = 1
) (
    input  logic             clk,
    input  logic             rst,
`ifdef UPDATABLE
    input  logic [31:0]      digest,
    input  logic [127:0]     facts,       // of updates
`endif
    input  logic             sample_in,
    input  logic             sample_out,
    input  logic             in_waits,
    input  logic             out_waits,
    input  logic             misplaced,
    input  logic             moved,       // any stream of the design
    input  logic [FIFOS-1:0] full,
    input  logic [7:0]       s_axi_awaddr,
    input  logic             s_axi_awvalid,
    output logic             s_axi_awready,
    input  logic [31:0]      s_axi_wdata,
    input  logic             s_axi_wvalid,
    output logic             s_axi_wready,
    output logic [1:0]       s_axi_bresp,
    output logic             s_axi_bvalid,
    input  logic             s_axi_bready,
    input  logic [7:0]       s_axi_araddr,
    input  logic             s_axi_arvalid,
    output logic             s_axi_arready,
    output logic [31:0]      s_axi_rdata,
    output logic [1:0]       s_axi_rresp,
    output logic             s_axi_rvalid,
    input  logic             s_axi_rready
);
    localparam int FLAG_WORDS = (FIFOS + 31) / 32;
    localparam int WORDS = 10 + FLAG_WORDS;

    logic [31:0] cycles, samples_in, samples_out, ins_waited, outs_waited, limit, idle;
    logic [FLAG_WORDS*32-1:0] flags;
    logic stuck, wrong_end, clear, written;

    assign written = s_axi_awvalid && s_axi_wvalid && !s_axi_bvalid;
    assign s_axi_awready = written;
    assign s_axi_wready = written;
    assign s_axi_bresp = 2'b00;
    assign s_axi_rresp = 2'b00;
    assign s_axi_arready = !s_axi_rvalid;
    assign clear = rst || (written && s_axi_awaddr[7:2] == 6'h02);

    always_ff @(posedge clk) begin
        if (clear) begin
            cycles <= '0;
            samples_in <= '0;
            samples_out <= '0;
            ins_waited <= '0;
            outs_waited <= '0;
            wrong_end <= 1'b0;
            stuck <= 1'b0;
            idle <= '0;
            flags <= '0;
        end else begin
            cycles <= cycles + 1'b1;
            samples_in <= samples_in + 32'(sample_in);
            samples_out <= samples_out + 32'(sample_out);
            ins_waited <= ins_waited + 32'(in_waits);
            outs_waited <= outs_waited + 32'(out_waits);
            if (misplaced) wrong_end <= 1'b1;
            // Nothing moves, an input waits, and it is not the one who reads the results that holds all up.
            idle <= (moved || out_waits || !in_waits) ? '0 : idle + 1'b1;
            if (!stuck && limit != '0 && idle == limit) begin
                stuck <= 1'b1;
                flags[FIFOS-1:0] <= full;
            end
        end
    end

    always_ff @(posedge clk) begin
        if (rst) begin
            limit <= LIMIT;
            s_axi_bvalid <= 1'b0;
            s_axi_rvalid <= 1'b0;
        end else begin
            if (written && s_axi_awaddr[7:2] == 6'h08) limit <= s_axi_wdata;
            if (written) s_axi_bvalid <= 1'b1;
            else if (s_axi_bready) s_axi_bvalid <= 1'b0;
            if (s_axi_arvalid && s_axi_arready) s_axi_rvalid <= 1'b1;
            else if (s_axi_rready) s_axi_rvalid <= 1'b0;
        end
    end

    logic [WORDS*32-1:0] all;
    assign all = {
        flags, 32'(FIFOS), limit, outs_waited, ins_waited, samples_out, samples_in, cycles,
`ifdef UPDATABLE
        {30'd0, wrong_end, stuck}, digest, 32'h53544f4b
`else
        {30'd0, wrong_end, stuck}, DIGEST, 32'h53544f4b
`endif
    };
    always_ff @(posedge clk) begin
        if (s_axi_arvalid && s_axi_arready) begin
            s_axi_rdata <= (s_axi_araddr[7:2] < 6'(WORDS)) ? all[s_axi_araddr[7:2]*32 +: 32] : '0;
`ifdef UPDATABLE
            if (s_axi_araddr[7:4] == 4'he) s_axi_rdata <= facts[s_axi_araddr[3:2]*32 +: 32];
`endif
        end
    end

    logic unused;
    assign unused = &{1'b0, s_axi_awaddr[1:0], s_axi_araddr[1:0]};
endmodule

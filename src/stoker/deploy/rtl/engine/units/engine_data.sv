// Data memory: numbers of 16 bits, LANES of them at any address, in a bank for each lane. Two reads and a write a
// cycle from two copies; a read is there three cycles after its address, a write three after its own.
module engine_data #(
    parameter int LANES = 8,
    parameter int WORDS = 1024,
    parameter int ADDRESS_W = 20
) (
    input  logic                     clk,
    input  logic [ADDRESS_W-1:0]     a_address,
    output logic [LANES*16-1:0]      a_data,
    input  logic [ADDRESS_W-1:0]     b_address,
    output logic [LANES*16-1:0]      b_data,
    input  logic                     write,
    input  logic [ADDRESS_W-1:0]     c_address,
    input  logic [LANES*16-1:0]      c_data,
    input  logic [$clog2(LANES):0]   c_count     // numbers written, from lane 0 on
);
    localparam int LW = $clog2(LANES);
    localparam int WW = $clog2(WORDS);

    logic [LW-1:0] a_first, a_turn, b_first, b_turn;   // the bank of lane 0
    logic [LANES*16-1:0] a_banks, b_banks;
    logic [LANES-1:0] written;
    logic [LANES*16-1:0] turned, a_turned, b_turned, c_turned;
    logic [LW-1:0] c_turn;
    assign c_turn = -c_address[LW-1:0];

    engine_turn #(.LANES(LANES), .W(16)) turn_a (.in_data(a_banks), .turn(a_turn), .out_data(a_turned));
    engine_turn #(.LANES(LANES), .W(16)) turn_b (.in_data(b_banks), .turn(b_turn), .out_data(b_turned));
    engine_turn #(.LANES(LANES), .W(16)) turn_c (.in_data(c_data), .turn(c_turn), .out_data(c_turned));

    always_ff @(posedge clk) begin
        a_first <= a_address[LW-1:0];
        b_first <= b_address[LW-1:0];
        a_turn <= a_first;
        b_turn <= b_first;
        a_data <= a_turned;
        b_data <= b_turned;
        turned <= c_turned;
        for (int i = 0; i < LANES; i++) written[i] <= write && {1'b0, LW'(LW'(i) + c_turn)} < c_count;
    end

    generate
        for (genvar i = 0; i < LANES; i++) begin : bank
            (* no_rw_check *) logic [15:0] a_copy [WORDS];
            (* no_rw_check *) logic [15:0] b_copy [WORDS];
            logic [WW-1:0] a_at, b_at, c_at;
            // A bank before that of lane 0 holds numbers of the next word.
            logic [LW+WW-1:0] a_up, b_up, c_up;
            assign a_up = a_address[LW+WW-1:0] + (LW+WW)'(LANES - 1 - i);
            assign b_up = b_address[LW+WW-1:0] + (LW+WW)'(LANES - 1 - i);
            assign c_up = c_address[LW+WW-1:0] + (LW+WW)'(LANES - 1 - i);
            logic unused_low;
            assign unused_low = &{1'b0, a_up, b_up, c_up};
            always_ff @(posedge clk) begin
                a_at <= a_up[LW +: WW];
                b_at <= b_up[LW +: WW];
                c_at <= c_up[LW +: WW];
                a_banks[i*16 +: 16] <= a_copy[a_at];
                b_banks[i*16 +: 16] <= b_copy[b_at];
                if (written[i]) begin
                    a_copy[c_at] <= turned[i*16 +: 16];
                    b_copy[c_at] <= turned[i*16 +: 16];
                end
            end
        end
    endgenerate

    logic unused;
    assign unused = &{1'b0, a_address, b_address, c_address};
endmodule
